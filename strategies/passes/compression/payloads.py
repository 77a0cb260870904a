"""Exchange of payloads of words: every worker gets those of all, and adds up what it decodes of them."""

from collections.abc import Sequence
from itertools import chain, product

from strategies.ir.graph import DType, Shape
from strategies.ir.train_graph import Transfer
from strategies.numerics.compressed_sums import decoded_sums, encode_one
from strategies.numerics.compressors.codec import Codec
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.collectives.ring.transfers import give
from strategies.passes.compression.compressed_gradients import gradient_spec, state_specs
from strategies.passes.compression.encoded_exchange import Encoders, Exchanging, Given
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica

_WORD = DType("int32")


def exchange_payloads(name: str, gradients: Sequence[str], codec: Codec, encoders: Encoders) -> Exchanging:
    """Sums decoded once on each worker, from all members' payloads in the order of their ranks."""
    task, host = encoders.task, encoders.host
    first = [encoders.brought[g, encoders.replicas[0].rank] for g in gradients]
    shapes, dtype = tuple(map(static_dims, first)), first[0].dtype
    lengths = [encoders.n_words(b) for b in first]
    own = [_payload(g, codec, encoders, r) for r, g in product(encoders.replicas, gradients)]
    shares = [encoders.n_of_task(k) * lengths for k in range(encoders.topology.n_tasks)]
    transfer = Transfer(name=name, kind="gather", shares=tuple(map(sum, shares)))
    came = yield Given(
        transfer=transfer,
        nodes=give(transfer, [own], [[Shape((n,)) for n in shares[task]]], _WORD, host),
        comes=[[(n,) for n in share] for k, share in enumerate(shares) if k != task],
        dtype=_WORD,
    )
    n_before = sum(len(share) for share in shares[:task])
    payloads = [*came[:n_before], *own, *came[n_before:]]
    snippet = trace(
        decoded_sums,
        tuple(TensorSpec(dtype=_WORD, shape=Shape((n,))) for n in chain(*shares)),
        shapes=shapes,
        dtype=dtype_number(dtype),
        codec=codec,
    )
    sums = encoders.added(snippet, f"{name}/decode/", payloads, host)
    return dict(zip(gradients, sums, strict=True))


def _payload(gradient: str, codec: Codec, encoders: Encoders, replica: Replica) -> str:
    """The payload of one replica's gradient, and nodes that keep what its compressor remembers."""
    b = encoders.brought[gradient, replica.rank]
    states = encoders.states(gradient, codec, replica)
    encode = trace(encode_one, (gradient_spec(b), *state_specs(states)), codec=codec)
    nodes, (payload, *after) = encode.splice(
        f"{gradient}/encode/replica_{replica.rank}/",
        [b.contributions[0].values, *(state.value for state in states)],
        device=replica.device,
    )
    encoders.additions.add(nodes, states, after)
    return payload
