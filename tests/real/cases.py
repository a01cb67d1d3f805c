"""The real models: where each comes from, data of its input shapes, and how it is trained.

Used by fetch_models.py (packages and sums), real_models.py (the test) and torch_witness.py (what
PyTorch computes). Data is a pure function of the case's name: numpy's RandomState, whose stream never
changes, seeded with the name's CRC. Tier A trains and exports, B trains in part, C is refused.
The files are their packages' own and not part of this project; they are downloaded when tested.
"""
import dataclasses
import zlib

import numpy as np

# id: (package, version, path in the archive, sha256)
FILES = {
    "magika_std": (
        "magika", "1.0.3", "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"),
    "ppocr_v2_cls": (
        "rapidocr-onnxruntime", "1.4.4",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"),
    "ppocr_v4_det": (
        "rapidocr-onnxruntime", "1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"),
    "ppocr_v4_rec": (
        "rapidocr-onnxruntime", "1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"),
    "silero_v6_16k_op15": (
        "silero-vad", "6.2.3", "silero_vad/data/silero_vad_16k_op15.onnx",
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49"),
    "silero_v6_16k_seq": (
        "silero-vad", "6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"),
    "oww_alexa": (
        "openwakeword", "0.4.0", "openwakeword/resources/models/alexa_v0.1.onnx",
        "6ff566a01d12670e8d9e3c59da32651db1575d17272a601b7f8a39283dfbae3e"),
    "oww_marvin": (
        "openwakeword", "0.4.0", "openwakeword/resources/models/hey_marvin_v0.1.onnx",
        "b6d4b794ddf2e1d6f29e9f45848e24858e2edd0d810b14e0c1c70dda9a1fcbf0"),
    "oww_mycroft": (
        "openwakeword", "0.4.0", "openwakeword/resources/models/hey_mycroft_v0.1.onnx",
        "785bdf5655863ae47553b23793aa108c7b0152d4823f7869b41f2d2d765912fc"),
    "ddddocr_old_int8": (
        "ddddocr", "1.6.1", "ddddocr/common_old.onnx",
        "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68"),
    "basic_pitch": (
        "basic-pitch", "0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec"),
    "light_resnet50": (
        "onnx", "1.22.0", "onnx/backend/test/data/light/light_resnet50.onnx",
        "05e77a5c9c9ce0913f549a50d6ebaced5e0ff6817b61e09bae26e4c5bd9055e4"),
    "light_squeezenet": (
        "onnx", "1.22.0", "onnx/backend/test/data/light/light_squeezenet.onnx",
        "770b0f3c8623e18bf58b53754d710051b4c268248422142980a132bbe6dfe908"),
    "ort_logreg_iris": (
        "onnxruntime", "1.32.0", "onnxruntime/datasets/logreg_iris.onnx",
        "8224784c98d73412d9fd99abcd57a38568bd590980d0fbe5916464531c52e8fc"),
    "surr_dtc": (
        "surfaces-surrogates", "0.0.1", "surfaces_surrogates/models/decision_tree_classifier.onnx",
        "312e647df9facefdf6b9621d270da6221f00f07c5f703ae216cf5a724abf7a5f"),
    "surr_gbr": (
        "surfaces-surrogates", "0.0.1", "surfaces_surrogates/models/gradient_boosting_regressor.onnx",
        "284137f114c78852b169fbe2cfc45d2840ade35af28bfce50bf623c948afe42b"),
}


class Random:
    """Random arrays of one case."""

    def __init__(self, name):
        self.r = np.random.RandomState(zlib.crc32(name.encode()))

    def normal(self, *dims, scale=1.0):
        return (self.r.standard_normal(dims) * scale).astype(np.float32)

    def integers(self, low, high, *dims, dtype=np.int64):
        return self.r.randint(low, high, dims).astype(dtype)

    def bits(self, *dims, share=0.5):
        return (self.r.random_sample(dims) < share).astype(np.float32)


@dataclasses.dataclass
class Case:
    """How one model is trained and checked."""
    model: str
    data: object  # Random -> {array name: array}
    loss: str
    batch: int
    tier: str = "A"
    output: str = ""  # the output the loss applies to; "" = the first
    lr: float = 1e-4
    freeze: str = ""  # --freeze: what is a table and no weight
    differences: int = 20  # directions of the finite differences; 0 = none
    why: str = ""  # why no finite differences, or what else is special
    no_dropout: bool = False  # gradients are compared on a copy with dropout ratio 0
    fixed: str = ""  # what ortrain keeps by itself although a gradient reaches it
    rtol: float = 1e-9  # of loss and gradients against PyTorch's; 1e-10 is usual
    flags: tuple = ()


def label(make, **inputs):
    return dict(labels=make, **inputs)


LONG = "twenty differences of its loss take minutes in double precision; PyTorch is the witness"
CASES = {
    "magika_std": Case(
        "magika_std", lambda r: label(r.integers(0, 214, 2), bytes=r.integers(0, 257, 2, 2048, dtype=np.int32)),
        "cross_entropy", 2, differences=0, why=LONG + "; its GELU's constants are float32, the fused operator's exact",
        rtol=3e-7),
    "ppocr_v2_cls": Case(
        "ppocr_v2_cls", lambda r: label(r.integers(0, 2, 4), x=r.normal(4, 3, 48, 64)), "cross_entropy", 4),
    "ppocr_v4_det": Case(
        "ppocr_v4_det", lambda r: label(r.bits(1, 1, 64, 64, share=0.3), x=r.normal(1, 3, 64, 64)), "bce", 1,
        differences=5),
    "ppocr_v4_rec": Case(
        "ppocr_v4_rec", lambda r: label(r.integers(0, 6625, 2, 8), x=r.normal(2, 3, 48, 64)), "cross_entropy", 2,
        differences=0, why=LONG),
    "ppocr_v4_det_dice": Case(
        "ppocr_v4_det", lambda r: label(r.bits(2, 1, 64, 64, share=0.3), x=r.normal(2, 3, 64, 64)), "dice", 2,
        differences=0, why=LONG),
    "ppocr_v4_rec_ctc": Case(  # two texts of 3 and 4 symbols for 8 steps; -1 is padding
        "ppocr_v4_rec",
        lambda r: label(np.concatenate([r.integers(1, 6625, 2, 3), np.array([[-1], [r.integers(1, 6625)]])], 1),
                        x=r.normal(2, 3, 48, 64)),
        "ctc", 2, differences=0, why=LONG),
    "silero_v6_16k_seq": Case(
        "silero_v6_16k_seq",
        lambda r: label(r.bits(16), input=r.normal(16, 576, scale=0.1), h=np.zeros((1, 1, 128), np.float32),
                        c=np.zeros((1, 1, 128), np.float32)),
        "bce", 16, freeze="basis"),
    # If on the data: which branch runs depends on the initial state, which is given with each sample.
    "silero_v6_16k_op15": Case(
        "silero_v6_16k_op15",
        lambda r: label(r.bits(4, 1), input=r.normal(4, 576, scale=0.1), sr=np.array(16000),
                        state=np.zeros((2, 4, 128), np.float32)),
        "bce", 4, tier="B", freeze="basis"),
    "oww_alexa": Case(
        "oww_alexa", lambda r: label(r.bits(1, 1), **{"onnx::Flatten_0": r.normal(1, 16, 96)}), "bce", 1),
    "oww_marvin": Case(
        "oww_marvin", lambda r: label(r.bits(1, 1), **{"onnx::Flatten_0": r.normal(1, 16, 96)}), "bce", 1),
    "oww_mycroft": Case(
        "oww_mycroft", lambda r: label(r.bits(8, 1), input_1=r.normal(8, 16, 96)), "bce", 8),
    "basic_pitch": Case(
        "basic_pitch",
        lambda r: label(r.bits(1, 172, 88, share=0.1),
                        **{"serving_default_input_2:0": r.normal(1, 43844, 1, scale=0.1)}),
        "bce", 1,
        # The constant-Q transform's tables and the constants of the log normaliser.
        freeze="const_fold_opt__(655|664|734)$|cq_t2010v2|conv2d_5/Conv2D;|normalized_log",
        differences=0, why=LONG),
    "light_resnet50": Case(
        "light_resnet50", lambda r: label(r.integers(0, 1000, 1), **{"gpu_0/data_0": r.normal(1, 3, 224, 224)}),
        "cross_entropy", 1, differences=0, why=LONG),
    "light_squeezenet": Case(
        "light_squeezenet",
        lambda r: label(r.integers(0, 1000, 1, 1, 1), data_0=r.normal(1, 3, 224, 224, scale=1e-3)),
        "cross_entropy", 1, lr=1e-9, differences=0, no_dropout=True,
        why="every weight is 0.02, so logits are huge and all equal: differences have no digits"),
    "surr_dtc": Case("surr_dtc", lambda r: label(r.normal(32, 1), input=r.normal(32, 6)), "mse", 32),
    "surr_gbr": Case("surr_gbr", lambda r: label(r.normal(32, 1), input=r.normal(32, 4)), "mse", 32),
}


# Tier C: what the one message must name.
REFUSED = {
    "ddddocr_old_int8": ["DynamicQuantizeLSTM"],
    "ort_logreg_iris": ["LinearClassifier", "Normalizer", "ZipMap"],
}


def data_of(name):
    """{array name: array} of a case."""
    return CASES[name].data(Random(name))


def summary(name, gradient):
    """[L2 norm, two projections on fixed random directions] of a parameter's gradient."""
    g = np.asarray(gradient, np.float64).ravel()
    r = np.random.RandomState(zlib.crc32(name.encode()))
    return [float(np.linalg.norm(g))] + [float(r.standard_normal(g.size) @ g) for _ in range(2)]
