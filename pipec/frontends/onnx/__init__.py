"""ONNX files through the same tracer as torch modules: each node runs as a small torch function.

```text
model.onnx ─ read (no weights) ─► evaluate on fake tensors ─► known values, types, weights, ways
                                                                  │
              Graph ◄─ trace (torch.export, decompose, clean) ◄─ OnnxModule
```
"""

from pipec.frontends.onnx.frontend import OnnxFrontend

__all__ = ["OnnxFrontend"]
