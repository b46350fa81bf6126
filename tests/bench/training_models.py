"""The Lina paper's training models as steps: what their layers take, send and sum, with where each figure is from.

[P]: the paper (scheduler/PAPERS.md, rows LI-n); [D]: derived here from such rows; [U]: not in the paper's text that we
have, taken from the model's own publication or code.
"""
from dataclasses import dataclass

# Links.  LI-2's 12-layer model has 117 M parameters with 4 experts and 419 M with 16: 2.1 M an expert and layer, so
# hidden 512 and inner 2048 [D].  Its 48 all-to-alls, those of backward 1.83 times as long (LI-1), take 333 ms on 16 GPUs
# and 259 ms on 4: one takes 4.90 ms and 3.81 ms by itself [D].
#   16 GPUs: 3/4 of 4 GPUs' rows leave a node by 100 Gb/s [P], so a GPU's rows are 4.90 ms * 12.5 GB/s / 3 = 20.4 MB [D],
#   4980 tokens of 2 experts, 512 numbers, 4 bytes;  4 GPUs: 3/4 of these take 3.81 ms, so a GPU's link has 4.02 GB/s [D],
#   with which 15/16 of them take 4.76 ms: both links are about equally full on 16 GPUs.
NODE_BYTES_PER_S = 12.5e9
GPU_BYTES_PER_S = 4.02e9
GPUS_PER_NODE = 4  # [P]
TOKENS_PER_GPU = 4980
TOP_K = 2  # [P]
NUMBER_BYTES = 4  # [U]: of activations and gradients; the paper does not say

# An all-to-all of 16 GPUs by itself is `a`.  Its pair is 74.9 % of a MoE layer's forward (LI-3), so the rest takes 0.67 a
# [D]; it is 33 to 36 % of the pair as LI-10's efficiency without packing says.  Backward takes twice as long.
# All-to-alls are 38.0 % of a step of 16 GPUs (LI-2, mean of three): of (2 + 2 * 1.83) a a layer the other 62 % are 9.23 a,
# less 3 * 0.67 a of experts: 7.2 a for attention, norms and all else, a third of it forward [D].
EXPERTS_OVER_A2A = 0.67
ATTENTION_OVER_A2A = 2.4

PIECE_BYTES = 30e6  # [P]; the buckets of fair and fixed are DDP's to it (scheduler/jobs/reduce_policy.h)


@dataclass(frozen=True)
class Model:
    name: str
    layers: int
    hidden: int
    inner: int
    attention_out: tuple  # numbers of hidden * hidden each, of every layer, in backward order
    attention_in: tuple
    packing: dict  # {workers: experts a worker} that the paper chose [P]: 2, but 4 for Transformer-XL on 16
    embedding: int = 0  # rows of hidden, complete behind all layers
    decoder_out: tuple = ()  # of an encoder-decoder, in its decoder's half of the layers, besides
    decoder_in: tuple = ()
    decoder_embedding: int = 0  # rows, complete with the decoder's first layer

    def rows_bytes(self):
        """Of a GPU's rows of a layer, each way: as many tokens as LI-2's model has."""
        return TOKENS_PER_GPU * TOP_K * self.hidden * NUMBER_BYTES

    def all_to_all_seconds(self):
        """By itself, on 16 GPUs."""
        return self.rows_bytes() * 0.75 * GPUS_PER_NODE / NODE_BYTES_PER_S


MODELS = [
    # The 24-layer Transformer-XL of Enwik8 (the paper's data set [P]; sizes of its published code [U]): q, k and v in one,
    # positions' keys, output.  Its 204 characters' embedding is nothing beside them.
    Model("Transformer-XL", 24, 1024, 3072, (1,), (3, 1), {4: 2, 8: 2, 16: 4}),
    # GPT-2 with 12 layers [U]: lm_head is the embedding, complete behind all layers, and 1024 positions.
    Model("GPT-2", 12, 768, 3072, (1,), (3,), {4: 2, 8: 2, 16: 2}, embedding=50257 + 1024),
    # BERT and GPT-2, 12 layers each [U], the latter with attention to the former.
    Model("BERT2GPT2", 24, 768, 3072, (1,), (3,), {4: 2, 8: 2, 16: 2}, embedding=30522 + 512, decoder_out=(1,),
          decoder_in=(1, 2), decoder_embedding=50257 + 1024),
]


@dataclass(frozen=True)
class Scale:
    """What is made of a model: so many times fewer bytes, so many times slower, so many of its layers."""

    bytes: float
    time: float
    layers: int

    def link(self, bytes_per_s):
        return bytes_per_s / self.bytes / self.time


def worker_flags(model, scale):
    """The step's shape as training_worker takes it."""
    share = scale.layers / model.layers  # of what is there once: so its share of the step stays

    def elements(numbers):
        return ",".join(str(max(1, round(number / scale.bytes))) for number in numbers)

    square = model.hidden * model.hidden
    a2a_us = model.all_to_all_seconds() * scale.time * 1e6
    # Routers and norms, under half a percent of a layer's bytes, are left out: what a sum takes besides its bytes is this
    # machine's and not scaled.
    lists = {
        "attention_out": [square * each for each in model.attention_out],
        "attention_in": [square * each for each in model.attention_in],
        "expert": [model.hidden * model.inner] * 2,
        "embedding": [model.embedding * model.hidden * share] if model.embedding else [],
        "decoder_out": [square * each for each in model.decoder_out],
        "decoder_in": [square * each for each in model.decoder_in],
        "decoder_embedding": [model.decoder_embedding * model.hidden * share] if model.decoder_embedding else [],
    }
    return [f"--layers={scale.layers}", f"--row_bytes={round(model.rows_bytes() / scale.bytes)}",
            f"--attention_us={ATTENTION_OVER_A2A * a2a_us:.0f}", f"--experts_us={EXPERTS_OVER_A2A * a2a_us:.0f}",
            f"--decoder_layer={scale.layers // 2 if model.decoder_in else -1}",
            f"--piece_bytes={round(PIECE_BYTES / scale.bytes)}",
            f"--rank_bytes_per_s={scale.link(GPU_BYTES_PER_S):.0f}", f"--node_bytes_per_s={scale.link(NODE_BYTES_PER_S):.0f}",
            f"--node_size={GPUS_PER_NODE}", *(f"--{name}={elements(numbers)}" for name, numbers in lists.items() if numbers)]
