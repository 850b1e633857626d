"""Model files: tensors in one file and their metadata in another, tied together by a checksum."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from fedlap.errors import InputError
from fedlap.storage.files import (
    decode_with_checksum,
    describe_error,
    encode_with_checksum,
    read_file,
    refuse_link,
    replace_file,
    unwritable_error,
)
from fedlap.storage.tensor_files import parse_tensors, write_tensors

MODEL_FILE_FORMAT = 2


def write_model_files(
    tensors_path: Path, metadata_path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write both files to the disk, then rename both; `read_model_files` rejects a pair split by a crash."""
    try:
        with (
            replace_file(metadata_path, durable=True) as second,
            replace_file(tensors_path, durable=True) as first,
        ):
            _, checksum = write_tensors(first, tensors)
            second.write(encode_with_checksum({"format": MODEL_FILE_FORMAT, **metadata, "sha256": checksum}))
            for file in (first, second):  # if the disk is full, neither is renamed
                file.flush()
    except OSError as error:
        raise unwritable_error(tensors_path, error) from error


def read_model_files(tensors_path: Path, metadata_path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and metadata; raise InputError if a file is damaged or the two do not match.

    The tensors come from the bytes whose checksum was compared.
    """
    try:
        for path in (tensors_path, metadata_path):
            refuse_link(path)
        metadata = decode_with_checksum(read_file(metadata_path))
        if metadata is None:
            raise InputError(
                f"{metadata_path} is damaged or was edited: its checksum differs; save the model again"
            )
        if type(metadata.get("format")) is not int:
            raise invalid_field_error(metadata_path, "format")
        if metadata["format"] > MODEL_FILE_FORMAT:
            raise InputError(f"{metadata_path} was written by a newer version of fedlap; upgrade fedlap")
        if metadata["format"] < MODEL_FILE_FORMAT:
            raise InputError(
                f"{metadata_path} was written by an older version of fedlap (format {metadata['format']}, "
                f"expected {MODEL_FILE_FORMAT}); train and save the model again"
            )
        content = read_file(tensors_path)
        if sha256(content).hexdigest() != metadata.get("sha256"):
            raise InputError(
                f"{tensors_path} is damaged or does not match {metadata_path.name}; save the model again"
            )
        return parse_tensors(content), metadata
    except OSError as error:
        raise InputError(
            f"{error.filename or tensors_path} cannot be read ({describe_error(error)}); a model "
            f"consists of two files, {tensors_path.name} and {metadata_path.name}"
        ) from error
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{tensors_path} is not a safetensors file ({error}); save the model again"
        ) from error


def invalid_field_error(path: Path, field: str) -> InputError:
    """Return the error for a metadata file with a missing or invalid field."""
    return InputError(f"{path} is damaged: it has no valid {field!r}; save the model again")
