"""Tensors in safetensors files, written tensor by tensor and read from memory."""

import hashlib
import json
from collections.abc import Mapping
from io import BufferedIOBase

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

# Type names of the format. Tensors are written in this order, larger types first, so that all are aligned.
SAFETENSORS_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(file: BufferedIOBase, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write tensors to a new file without copying them; return its size and its SHA-256.

    The bytes are those of `safetensors.torch.save`; `save_file` is not used, since it ignores the umask.
    """
    place = list(SAFETENSORS_NAMES).index
    order = sorted(tensors, key=lambda name: (place(tensors[name].dtype), name))
    header, end = dict[str, object](), 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        kind = SAFETENSORS_NAMES[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    total = hashlib.sha256()
    for piece in (len(text).to_bytes(8, "little"), text):
        total.update(piece)
        file.write(piece)
    for name in order:
        tensor = tensors[name].detach().cpu().contiguous()
        if tensor.numel():
            values = tensor.reshape(-1).view(torch.uint8).numpy().data
            total.update(values)
            file.write(values)
    return 8 + len(text) + end, total.hexdigest()


def parse_tensors(content: bytes) -> dict[str, Tensor]:
    """Parse the content of a safetensors file into separate tensors; raise ValueError if it is damaged."""
    try:
        found: dict[str, Tensor] = load(content)
    except (SafetensorError, KeyError, TypeError, AssertionError, RuntimeError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split()) or "its header is damaged") from error
    return found
