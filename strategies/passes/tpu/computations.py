"""Compiled computations: metadata, executes, programs and the replicas that run them.

TensorFlow has no Python class for the metadata's message. Fields that are read or changed are declared here;
all others are preserved.

Source:
    TensorFlow 2.21, tensorflow/core/protobuf/tpu/compile_metadata.proto.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from google.protobuf.message import DecodeError

from strategies.errors import GraphError
from strategies.ir.graph import DType, Node, Shape, producer
from strategies.ir.tensor_proto import const, message_classes
from strategies.passes.tpu.scopes import Scope
from strategies.tf_bridge.snippet import TensorSpec

_Metadata = message_classes(
    "stratbench.tpu",
    {
        "Argument": {"kind": (3, "int32"), "enable_xla_sharding": (6, "int32")},
        "Metadata": {
            "args": (1, "repeated Argument"),
            "num_replicas": (3, "int32"),
            "num_cores_per_replica": (4, "int32"),
        },
    },
)["Metadata"]


class ArgumentKind(IntEnum):
    """Kind of an argument of a computation."""

    INVALID = 0
    PARAMETER = 1
    VARIABLE = 2
    GUARANTEED_CONSTANT = 3


class Sharding(IntEnum):
    """Permission to keep an argument in parts; `TENTATIVE` depends on the host loop."""

    DISALLOWED = 0
    TENTATIVE = 1
    ALLOWED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a computation, as every replica passes it."""

    kind: ArgumentKind
    sharding: Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileMetadata:
    """Metadata of a compile node.

    Attributes:
        arguments: arguments of the execute nodes, in order, without guaranteed constants.
    """

    n_replicas: int
    n_cores_per_replica: int
    arguments: tuple[Argument, ...]
    proto: bytes

    @classmethod
    def parse(cls, proto: bytes) -> "CompileMetadata":
        try:
            message = _Metadata.FromString(proto)
            arguments = tuple(
                Argument(kind=ArgumentKind(arg.kind), sharding=Sharding(arg.enable_xla_sharding))
                for arg in message.args
            )
        except (DecodeError, ValueError) as error:
            raise GraphError(
                f"metadata must be a TPUCompileMetadataProto, got {len(proto)} bytes that are none ({error})"
            ) from error
        return cls(
            n_replicas=message.num_replicas,
            n_cores_per_replica=message.num_cores_per_replica,
            arguments=tuple(a for a in arguments if a.kind is not ArgumentKind.GUARANTEED_CONSTANT),
            proto=proto,
        )

    @classmethod
    def of(cls, n_replicas: int, arguments: Sequence[Argument]) -> "CompileMetadata":
        message = _Metadata(num_replicas=n_replicas, num_cores_per_replica=1)
        for argument in arguments:
            message.args.add(kind=argument.kind, enable_xla_sharding=argument.sharding)
        return cls.parse(message.SerializeToString(deterministic=True))

    def allowing(self, positions: Collection[int]) -> bytes:
        message = _Metadata.FromString(self.proto)
        passed = [arg for arg in message.args if arg.kind != ArgumentKind.GUARANTEED_CONSTANT]
        for position in positions:
            passed[position].enable_xla_sharding = Sharding.ALLOWED
        return bytes(message.SerializeToString(deterministic=True))


COMPILES = frozenset({"TPUCompile", "_TPUCompileMlir"})
EXECUTES = frozenset({"TPUExecute", "TPUExecuteAndUpdateVariables"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A compile node whose program every replica executes once.

    Attributes:
        executes: execute nodes in graph order; each reads the metadata's arguments, then the program's key.
    """

    compile: Node
    metadata: CompileMetadata
    executes: tuple[Node, ...]

    def candidates(self) -> tuple[int, ...]:
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


def read_computation(scope: Scope, node: Node) -> Computation:
    """Read the computation of a compile node.

    Raises:
        GraphError: it cannot be resharded; the message gives the reason.
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
    waiting = [node.name]
    for name in waiting:
        for reader, _ in scope.readers(name):
            if reader.op in EXECUTES:
                yield reader
            elif reader.op == "Identity":
                waiting.append(reader.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Nodes of a graph that read arguments; arguments have no nodes.

    Attributes:
        arguments: name → type, in order.
        results: name → reference, in order.
        waits: nodes that run in each call, even if no result needs them.
    """

    nodes: tuple[Node, ...]
    arguments: Mapping[str, DType]
    results: Mapping[str, str]
    waits: tuple[str, ...]

    def roots(self) -> tuple[str, ...]:
        results = (producer(ref) for ref in self.results.values())
        return tuple(dict.fromkeys((*self.waits, *(name for name in results if name not in self.arguments))))

    def with_nodes(self, nodes: Iterable[Node], *, waits: Iterable[str] = ()) -> "Program":
        return replace(self, nodes=tuple(nodes), waits=(*self.waits, *waits))


PLACE, PLACE_SPEC = "place", TensorSpec(dtype=DType("int32"), shape=Shape(()))
"""Name and type of the argument with the replica's rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A replica of a program.

    Attributes:
        place: rank of the replica.
        order: rank at each position of the group in TensorFlow's collectives.
        group: number of members, and group key.
    """

    place: int
    order: tuple[int, ...]
    group: tuple[int, int]
    device: str
    host: str

    def place_node(self) -> Node:
        return const(PLACE, "int32", self.place)
