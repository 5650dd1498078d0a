"""ONNX files: each node runs as a small torch function on fake tensors, and what runs is recorded.

```text
model.onnx ─ read (no weights) ─► evaluate on fake tensors ─► known values, types, weights, ways
                                        │
              Graph ◄─ clean ◄─ Recorder ─► OnnxModule ─► trace with a loss, in training
```
"""

from pipec.frontends.onnx.frontend import OnnxFrontend

__all__ = ["OnnxFrontend"]
