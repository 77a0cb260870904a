"""Exchange of the factors of gradients: both are summed over all workers, the second made of the first."""

from collections.abc import Sequence

from strategies.ir.graph import Shape, n_elements
from strategies.ir.train_graph import Transfer
from strategies.numerics.compressors.codec import Codec
from strategies.numerics.power_sums import (
    directions,
    kept_of_projection,
    own_right_factors,
    projected,
    sums_of_factors,
)
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.collectives.ring.transfers import Dims, give
from strategies.passes.compression.compressed_gradients import gradient_spec, state_specs
from strategies.passes.compression.encoded_exchange import Encoders, Exchanging, Given
from strategies.passes.replicate.kept_state import KeptState
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace


def exchange_factors(name: str, gradients: Sequence[str], codec: Codec, encoders: Encoders) -> Exchanging:
    """Sums made once on each worker, as products of two factors; see `power_sums`."""
    n, host, replicas = len(gradients), encoders.host, encoders.replicas
    brought = [[encoders.brought[g, r.rank] for g in gradients] for r in replicas]
    states = [[s for g in gradients for s in encoders.states(g, codec, r)] for r in replicas]
    dtype = states[0][0].variable.dtype
    shapes = tuple(map(static_dims, brought[0]))
    rights = [_dims(factor) for factor in states[0][1::2]]
    matrices = [(n_elements(dims[:-1]), dims[-1]) for dims in shapes]
    lefts = [(rows, columns) for (rows, _), (_, columns) in zip(matrices, rights, strict=True)]

    def specs(*groups: Sequence[Dims]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(dtype=dtype, shape=Shape(dims)) for group in groups for dims in group)

    def given(stage: str, products: Sequence[Sequence[str]], dims: Sequence[Dims]) -> Given:
        """A sum of what all members have of one of the factors."""
        transfer = Transfer(name=f"{name}/{stage}")
        nodes = give(transfer, products, [[Shape(each) for each in dims]], dtype, host)
        return Given(transfer=transfer, nodes=nodes, comes=[dims], dtype=dtype)

    of_replica = []
    for replica, own, kept in zip(replicas, brought, states, strict=True):
        project = trace(projected, (*map(gradient_spec, own), *state_specs(kept)))
        inputs = [*(b.contributions[0].values for b in own), *(state.value for state in kept)]
        of_replica.append(
            encoders.added(project, f"{name}/project/replica_{replica.rank}/", inputs, replica.device)
        )
    products = yield given("left", [made[n:] for made in of_replica], lefts)
    orthonormal = encoders.added(trace(directions, specs(lefts)), f"{name}/directions/", products, host)
    own_rights = [
        encoders.added(
            trace(own_right_factors, specs(matrices, lefts)),
            f"{name}/own-right/replica_{replica.rank}/",
            [*made[:n], *orthonormal],
            replica.device,
        )
        for replica, made in zip(replicas, of_replica, strict=True)
    ]
    summed = yield given("right", own_rights, rights)
    keep = trace(kept_of_projection, specs(matrices, lefts, rights, rights, rights), shapes=shapes)
    for replica, made, right, kept in zip(replicas, of_replica, own_rights, states, strict=True):
        before = [factor.value for factor in kept[1::2]]
        nodes, after = keep.splice(
            f"{name}/keep/replica_{replica.rank}/",
            [*made[:n], *orthonormal, *right, *summed, *before],
            device=replica.device,
        )
        encoders.additions.add(nodes, kept, after)
    multiply = trace(
        sums_of_factors, specs(lefts, rights), shapes=shapes, dtype=dtype_number(brought[0][0].dtype)
    )
    sums = encoders.added(multiply, f"{name}/sums/", [*orthonormal, *summed], host)
    return dict(zip(gradients, sums, strict=True))


def _dims(factor: KeptState) -> Dims:
    dims = factor.variable.shape.dims
    assert dims is not None
    return dims
