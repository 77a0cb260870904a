"""Computations in a loop: a compile node, and the executes of its program, one for each replica."""

from collections.abc import Iterator
from dataclasses import dataclass

from strategies.errors import GraphError
from strategies.ir.graph import Node
from strategies.passes.tpu.compiled.compile_metadata import CompileMetadata, Sharding
from strategies.passes.tpu.compiled.scopes import Scope

COMPILES = frozenset({"TPUCompile", "_TPUCompileMlir"})
EXECUTES = frozenset({"TPUExecute", "TPUExecuteAndUpdateVariables"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A compile node whose program every replica executes once.

    Attributes:
        executes: in graph order; each takes the arguments of the metadata, then the program's key.
    """

    compile: Node
    metadata: CompileMetadata
    executes: tuple[Node, ...]

    def candidates(self) -> tuple[int, ...]:
        """Positions of arguments that are variables and that the metadata would let be sharded."""
        return tuple(
            position
            for position, argument in enumerate(self.metadata.arguments)
            if argument.sharding is not Sharding.DISALLOWED
            and all(self._dtype(execute, position) == "resource" for execute in self.executes)
        )

    @staticmethod
    def _dtype(execute: Node, position: int) -> object:
        dtypes = execute.attrs.get("Targs")
        return dtypes[position] if isinstance(dtypes, tuple) and position < len(dtypes) else None


def computation(scope: Scope, node: Node) -> Computation:
    """The computation of a compile node.

    Raises:
        GraphError: it is none that can be resharded; the message says which rule it breaks.
    """
    metadata = _metadata(node)
    if metadata.n_cores_per_replica != 1:
        raise GraphError(
            f"num_cores_per_replica must be 1, got {metadata.n_cores_per_replica}: each replica's program is "
            "sharded already"
        )
    n_dynamic = node.attrs.get("NumDynamicShapes", 0)
    if n_dynamic != 0:
        raise GraphError(f"shapes must be known when it compiles, got {n_dynamic!r} that are not")
    executes = tuple(sorted(_executes(scope, node), key=lambda execute: scope.order[execute.name]))
    if len(executes) != metadata.n_replicas:
        raise GraphError(f"needs an execute for each of {metadata.n_replicas} replicas, got {len(executes)}")
    n_arguments = len(metadata.arguments)
    for execute in executes:
        if len(execute.data_inputs) != n_arguments + 1:
            raise GraphError(
                f"execute {execute.name!r} must take {n_arguments} arguments and a key, got "
                f"{len(execute.data_inputs)} inputs"
            )
    return Computation(compile=node, metadata=metadata, executes=executes)


def _metadata(node: Node) -> CompileMetadata:
    proto = node.attrs.get("metadata")
    if not isinstance(proto, bytes):
        raise GraphError("needs metadata, got none")
    return CompileMetadata.parse(proto)


def _executes(scope: Scope, node: Node) -> Iterator[Node]:
    """Nodes that execute the program of a compile node, directly or by identities of its key."""
    waiting = [node.name]
    for name in waiting:
        for reader, _ in scope.readers(name):
            if reader.op in EXECUTES:
                yield reader
            elif reader.op == "Identity":
                waiting.append(reader.name)
