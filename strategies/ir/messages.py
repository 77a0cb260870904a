"""Protobuf messages declared here, where TensorFlow's own classes are not at hand."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass


def message_classes(
    package: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]
) -> Mapping[str, type[Any]]:
    """Classes of messages; they keep fields that are not declared.

    Args:
        messages: message → field → number and type as in a .proto file: `int32`, `Shape`, `repeated Dim`.
    """
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for message, fields in messages.items():
        declared = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            label, _, type_name = kind.rpartition(" ")
            field = declared.field.add(name=name, number=number)
            field.label = FieldDescriptorProto.Label.Value(f"LABEL_{(label or 'optional').upper()}")
            if type_name in messages:
                field.type_name = f".{package}.{type_name}"
            else:
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{type_name.upper()}")
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
