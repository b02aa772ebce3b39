"""The rules of the format that are checked before a node is read: onnx knows its inputs, outputs and attributes by version."""

from __future__ import annotations

from typing import Any

from relucert.core.errors import CheckpointError
from relucert.interop.onnx._graph import Refused

LARGEST = 2**31 - 1  #: size of a whole number in an attribute
#: What attributes of a kind hold, by the kind's name in the format.
KINDS = {
    "FLOAT": "a float", "INT": "a whole number", "STRING": "a text", "TENSOR": "a tensor", "GRAPH": "a graph",
    "FLOATS": "floats", "INTS": "whole numbers", "STRINGS": "texts",
}  # fmt: skip


def check_opset(onnx: Any, imports: Any) -> int:
    """The version of ONNX's own operators that a file is written in."""
    versions = sorted({int(one.version) for one in imports if one.domain in ("", "ai.onnx")})
    newest = onnx.defs.onnx_opset_version()
    if len(versions) > 1:
        raise CheckpointError(f"it must name one version of the operators, got {versions}")
    version = versions[0] if versions else 1
    if not 1 <= version <= newest:
        raise CheckpointError(
            f"its operators must have a version (opset) in 1..{newest}, which the installed onnx knows, got {version}"
        )
    return version


def check_node(onnx: Any, proto: Any, opset: int) -> None:
    """Raise an error if a node does not have the inputs, outputs and attributes of its operator."""
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, "")
    except onnx.defs.SchemaError as error:
        raise CheckpointError(f"there is no operator {proto.op_type} in opset {opset}") from error
    for what, count, least, most in (
        ("inputs", len(proto.input), schema.min_input, schema.max_input),
        ("outputs", len(proto.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            raise CheckpointError(f"it must have {least} to {most} {what}, got {count}")
    seen: set[str] = set()
    for one in proto.attribute:
        if one.name in seen:
            raise CheckpointError(f"attribute {one.name!r} is there twice")
        seen.add(one.name)
        if one.name not in schema.attributes:
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise CheckpointError(f"attribute {one.name!r} does not exist in opset {opset}, only {known}")
        wanted = schema.attributes[one.name].type.name
        names = onnx.AttributeProto.AttributeType
        given = names.Name(one.type) if one.type in names.values() else str(one.type)
        if given != wanted:
            raise CheckpointError(f"attribute {one.name!r} must be {KINDS.get(wanted, wanted)}, got {given}")
        if wanted == "INT" and abs(one.i) > LARGEST:
            raise CheckpointError(f"attribute {one.name!r} must lie in -{LARGEST}..{LARGEST}, got {one.i}")
    missing = sorted(name for name, one in schema.attributes.items() if one.required and name not in seen)
    if missing:
        raise CheckpointError(f"attribute {missing[0]!r} is missing")


def check_meaning(proto: Any, opset: int) -> None:
    """Refuse attributes of old versions that mean something else than what is read."""
    given = {one.name for one in proto.attribute if one.name != "is_test" or one.i}
    if opset < 7 and proto.op_type in ("Add", "Sub", "Mul", "Div", "Pow") and "axis" in given:
        raise Refused("it broadcasts along an axis: export the model with opset 7 or newer")
    if opset < 7 and proto.op_type in ("BatchNormalization", "Dropout") and "is_test" not in given:
        raise Refused("it is in train mode: export the model in eval mode")
