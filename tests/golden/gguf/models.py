"""Makes models/NAME.gguf: tests/golden/models/NAME as llama.cpp's converter writes it, without a tokenizer, for
tests/workers/model/gguf_model_test.cc.  The converter knows no dense layers in Qwen's MoE models; it is made to.

The converter is in llama.cpp's source, of which a package on PyPI has a copy:
pip download llama-cpp-python==0.3.36 --no-binary llama-cpp-python --no-deps; tar xf llama_cpp_python-0.3.36.tar.gz
pip install torch transformers safetensors numpy pyyaml tqdm
python3 tests/golden/gguf/models.py llama_cpp_python-0.3.36/vendor/llama.cpp
"""
import pathlib
import shutil
import sys
import tempfile

LLAMA = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(LLAMA), str(LLAMA / "gguf-py")]

import gguf  # noqa: E402
import safetensors.torch  # noqa: E402
from conversion import base, get_model_class  # noqa: E402

HERE = pathlib.Path(__file__).parent
# Fixture: type of its matrices, which keeps all of their bits.
FIXTURES = {"mixtral-gqa": "MOSTLY_BF16", "mixtral-window": "ALL_F32", "qwen2-shared": "MOSTLY_BF16",
            "qwen3-qknorm": "MOSTLY_BF16", "qwen3-yarn": "MOSTLY_BF16", "olmoe-clip": "MOSTLY_BF16",
            "gptoss-mxfp4": "MOSTLY_BF16", "gptoss-plain": "MOSTLY_BF16"}
DENSE = [gguf.MODEL_TENSOR.FFN_GATE, gguf.MODEL_TENSOR.FFN_UP, gguf.MODEL_TENSOR.FFN_DOWN]


def one_file(folder, to):
    """The folder; of gpt-oss's codes and scales, which the converter wants one behind the other, a copy with one file."""
    if folder.name != "gptoss-mxfp4":
        return folder
    tensors = {}
    for part in sorted(folder.glob("model-*.safetensors")):
        tensors.update(safetensors.torch.load_file(part))
    copy = pathlib.Path(to) / folder.name
    copy.mkdir()
    shutil.copy(folder / "config.json", copy)
    safetensors.torch.save_file(tensors, copy / "model.safetensors")
    return copy


def main():
    (HERE / "models").mkdir(exist_ok=True)
    for arch in (gguf.MODEL_ARCH.QWEN2MOE, gguf.MODEL_ARCH.QWEN3MOE):
        gguf.MODEL_TENSORS[arch] += [each for each in DENSE if each not in gguf.MODEL_TENSORS[arch]]
    for name, ftype in FIXTURES.items():
        to = tempfile.TemporaryDirectory()
        folder = one_file(HERE.parent / "models" / name, to.name)
        hparams = base.ModelBase.load_hparams(folder, False)
        model_class = get_model_class(hparams["architectures"][0])
        model_class.set_vocab = lambda self: None
        out = HERE / "models" / f"{name}.gguf"
        with base.torch.inference_mode():
            model = model_class(folder, gguf.LlamaFileType[ftype], out, eager=True)
            model.write()
        print(name, out.stat().st_size)


main()
