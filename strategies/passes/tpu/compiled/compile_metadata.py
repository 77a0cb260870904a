"""Compile metadata of a TPU computation: how many replicas run it, and which arguments may be sharded.

TensorFlow ships no Python class of this message. The fields that are read or changed are declared here; all
others are kept as they came.

Source:
    TensorFlow 2.21, tensorflow/core/protobuf/tpu/compile_metadata.proto.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from strategies.errors import GraphError

_PACKAGE = "stratbench.tpu"
_OPTIONAL, _REPEATED = 1, 3
_INT32, _MESSAGE = 5, 11


class ArgumentKind(IntEnum):
    """What an argument of a computation is."""

    INVALID = 0
    PARAMETER = 1
    VARIABLE = 2
    GUARANTEED_CONSTANT = 3


class Sharding(IntEnum):
    """Whether the compiler may keep an argument in parts; `TENTATIVE` is for who knows of its host loop."""

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
    """What a compile node says of its computation.

    Attributes:
        arguments: those that executes pass, in their order; guaranteed constants go to the compiler alone.
        proto: the serialized message.
    """

    n_replicas: int
    n_cores_per_replica: int
    arguments: tuple[Argument, ...]
    proto: bytes

    @classmethod
    def parse(cls, proto: bytes) -> "CompileMetadata":
        """Read a serialized message.

        Raises:
            GraphError: it is none.
        """
        try:
            message = _message_class().FromString(proto)
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
        """The metadata of a computation of one core for each replica."""
        message = _message_class()(num_replicas=n_replicas, num_cores_per_replica=1)
        for argument in arguments:
            message.args.add(kind=argument.kind, enable_xla_sharding=argument.sharding)
        return cls.parse(message.SerializeToString(deterministic=True))

    def allowing(self, positions: Collection[int]) -> bytes:
        """The serialized message with the sharding of the arguments at these positions allowed."""
        message = _message_class().FromString(self.proto)
        passed = [arg for arg in message.args if arg.kind != ArgumentKind.GUARANTEED_CONSTANT]
        for position in positions:
            passed[position].enable_xla_sharding = Sharding.ALLOWED
        return bytes(message.SerializeToString(deterministic=True))


@cache
def _message_class() -> Any:  # noqa: ANN401 - a class that is made at run time
    file = descriptor_pb2.FileDescriptorProto(
        name="stratbench/tpu_compile_metadata.proto", package=_PACKAGE, syntax="proto3"
    )
    metadata = file.message_type.add(name="CompileMetadata")
    argument = metadata.nested_type.add(name="Argument")
    for name, number in (("kind", 3), ("enable_xla_sharding", 6)):
        argument.field.add(name=name, number=number, type=_INT32, label=_OPTIONAL)
    metadata.field.add(
        name="args",
        number=1,
        type=_MESSAGE,
        label=_REPEATED,
        type_name=f".{_PACKAGE}.CompileMetadata.Argument",
    )
    for name, number in (("num_replicas", 3), ("num_cores_per_replica", 4)):
        metadata.field.add(name=name, number=number, type=_INT32, label=_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.CompileMetadata"))
