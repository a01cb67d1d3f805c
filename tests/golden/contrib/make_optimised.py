"""Makes ../bert_tiny/model_ort.onnx: model_ts.onnx as onnxruntime 1.19.2's transformers optimizer
leaves it (SkipLayerNormalization and BiasGelu of com.microsoft), names of parameters unchanged.

Needs onnxruntime and onnx:  python tests/golden/contrib/make_optimised.py
"""
import os
import sys
import types

sys.modules["coloredlogs"] = types.SimpleNamespace(install=lambda *a, **k: None)  # only prints
from onnxruntime.transformers.optimizer import optimize_model  # noqa: E402

CASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bert_tiny")
model = optimize_model(os.path.join(CASE, "model_ts.onnx"), "bert", num_heads=2, hidden_size=64, opt_level=0)
model.save_model_to_file(os.path.join(CASE, "model_ort.onnx"))
