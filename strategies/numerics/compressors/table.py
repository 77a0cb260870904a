"""From a plan's compressor to its functions."""

from strategies.numerics.compressors.cast import Cast
from strategies.numerics.compressors.codec import Codec
from strategies.numerics.compressors.feedback import Feedback
from strategies.numerics.compressors.power import Power
from strategies.numerics.compressors.quantized import Quantized
from strategies.numerics.compressors.signs import Signs
from strategies.numerics.compressors.topk import TopK
from strategies.plan.compressors import BY_NAME
from strategies.plan.schema import Compression


def codec_of(compression: Compression, *, n_terms: int) -> Codec:
    """The codec of a compressor.

    Args:
        n_terms: how many encodings are added up before any is decoded.
    """
    compressor = BY_NAME[compression.name]
    codec = _bare(compressor.codec, compression, n_terms)
    return Feedback(codec=codec) if compressor.feedback else codec


def _bare(name: str, compression: Compression, n_terms: int) -> Codec:
    if name == "topk":
        return TopK(ratio=compression.ratio or 0.0)
    if name == "power":
        return Power(rank=compression.rank or 0)
    if name == "signs":
        return Signs()
    if name == "quantized":
        return Quantized(levels=compression.levels or 0)
    return Cast(wire=name, n_terms=n_terms)
