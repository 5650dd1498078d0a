"""The ONNX backend: one model file per stage, which onnxruntime loads as it is."""
