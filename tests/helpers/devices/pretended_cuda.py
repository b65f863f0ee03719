"""A CUDA device that is only pretended, so that mistakes with devices show on machines without a
GPU.

    with pretended_device() as device:
        model.to("cuda")
        ...
        device.waits       # how often the host waited for the device, by operation and line

A tensor of it says `cuda:0`, computes on the CPU, cannot be mixed with tensors of the CPU, and
cannot become a numpy array. Random numbers come from a generator of the device's own. What it
cannot show: kernels, the order of streams, real memory, NCCL, several devices, `torch.compile`.

Tensors are subclasses made as torch's `FakeTensor` is, with elements on the CPU. A mode of torch's
dispatcher computes, and creates tensors whose `device` is asked to be `cuda`; a mode of torch's
functions makes the copies to the CPU, which the dispatcher could not tell from those to the device.
Functions of `torch.cuda` and `torch.accelerator` are replaced.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lightrainer.facade.distributed import process
from lightrainer.lightning_modules.common import safe_serialization

DEVICE = torch.device("cuda", 0)
NAME = "Pretended GPU"
MEMORY = 80 * 2**30

aten = torch.ops.aten

READS_VALUES = {
    aten._local_scalar_dense.default,
    aten.bincount.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
}
"""Operations whose result, or its shape, the host needs to continue."""

TAKES_INDICES = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
"""Operations of a tensor on the device that take indices from the CPU, too."""

COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}

IS_RANDOM = torch.Tag.nondeterministic_seeded


class PretendedDevice:
    """What is counted while a device is pretended.

    Attributes:
        waits: how often the host waited for the device, by the operation and the line of Python
            that asked for it.
        uploads: how often a tensor was copied to the device, by whether the host went on without
            waiting.
        uploaded_bytes: the size of these tensors.
        generator: draws the random numbers of the device.
    """

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        self.uploads: Counter[bool] = Counter()
        self.uploaded_bytes = 0
        self.generator = torch.Generator()

    def wait(self, operation: str) -> None:
        """Count one wait for the device."""
        self.waits[operation, _calling_line()] += 1

    def upload(self, tensor: torch.Tensor, non_blocking: bool) -> None:
        """Count one copy of a CPU tensor to the device; only one from page-locked memory may be
        asynchronous.
        """
        goes_on = non_blocking and tensor.is_pinned()
        self.uploads[goes_on] += 1
        self.uploaded_bytes += tensor.nbytes
        if not goes_on:
            self.wait("copy to the device")

    def num_waits(self) -> int:
        """Return how often the host has waited so far."""
        return self.waits.total()

    @contextlib.contextmanager
    def draws(self) -> Iterator[None]:
        """Draw from the generator of the device what the block draws from that of the CPU."""
        of_cpu = torch.default_generator.get_state()
        torch.default_generator.set_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(of_cpu)


_pretended: PretendedDevice | None = None
"""The device, while there is one."""


def pretended() -> PretendedDevice | None:
    """Return the device that is pretended now; None without one."""
    return _pretended


_uses_real_device = False


def use_real_device() -> None:
    """Let tests that can train anywhere use the GPU of this machine from now on."""
    global _uses_real_device
    _uses_real_device = True


def trains_on_device() -> bool:
    """Tell whether tests that can train anywhere use a device: a pretended one, or with
    `--pretended` a real one.
    """
    return _pretended is not None or _uses_real_device


def _current() -> PretendedDevice:
    """Return the device; tensors may outlive it."""
    return _pretended or PretendedDevice()


def _calling_line() -> str:
    """Return file and line of the innermost frame that is neither torch's nor of this module."""
    for frame in reversed(traceback.extract_stack(limit=40)):
        if frame.filename != __file__ and "/torch/" not in frame.filename:
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return "torch"


class CudaTensor(torch.Tensor):
    """A tensor that says that it is on the device.

    Attributes:
        elements: the values, on the CPU.
    """

    elements: torch.Tensor

    @staticmethod
    def __new__(cls, elements: torch.Tensor, requires_grad: bool = False) -> CudaTensor:
        elements = elements.detach()
        tensor = torch.Tensor._make_subclass(
            cls,
            elements,
            requires_grad,
            dispatch_device=True,
            device_for_backend_keys=torch.device("cpu"),
        )
        tensor.elements = elements
        return tensor

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @property
    def data(self) -> CudaTensor:
        return CudaTensor(self.elements)

    @data.setter
    def data(self, other: CudaTensor) -> None:
        """Take the values of another tensor, as two weights do that change places."""
        if not isinstance(other, CudaTensor):
            raise RuntimeError(
                "incompatible tensor type: the data of a tensor on cuda:0 cannot be on the CPU"
            )
        self.elements = other.elements

    def __repr__(self) -> str:
        _current().wait("repr")
        return f"{self.elements!r} on {DEVICE}"

    def as_subclass(self, cls: type[torch.Tensor]) -> CudaTensor:
        """Return this tensor in another class; a backward pass does not come back from there."""
        return CudaTensor.__new__(_on_device(cls), self.elements, self.requires_grad)

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), spec)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as in the mode, which other threads do not have."""
        with torch._C.DisableTorchFunctionSubclass():
            return _function(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: int) -> Any:
        """Pickle the values; a file does not tell the device."""
        _current().wait("pickle")
        return self.elements.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol"
            )
        copied: torch.Tensor = CudaTensor(self.elements.clone(), self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.clone()
        for name, value in self.__dict__.items():
            if name not in ("elements", "_is_param"):
                setattr(copied, name, value)
        memo[id(self)] = copied
        return copied

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.elements.untyped_storage()

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.elements.data_ptr()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def record_stream(self, stream: Any) -> None: ...

    def tolist(self) -> Any:
        _current().wait("tolist")
        return self.elements.tolist()


CudaTensor.__name__ = "Tensor"  # messages name the class of a value


# Operations
# ###########################################################################################################


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation of torch's dispatcher, of tensors on the device or of those that are
    to be created there.
    """
    asked_device = kwargs.get("device")
    creates_there = asked_device is not None and torch.device(asked_device).type == "cuda"
    if func is aten._local_scalar_dense.default and not isinstance(args[0], torch.Tensor):
        return args[0]  # torch passes the number where a tensor was made from one
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, CudaTensor)]
    if not on_device and not creates_there:
        return _on_cpu(func, args, kwargs)

    _refuse_mixed(func, args, tensors, on_device)
    _count(func, args, on_device)

    of_cpu_args = tree_map(_elements_of, args)
    of_cpu_kwargs = tree_map(_elements_of, kwargs)
    if creates_there:
        of_cpu_kwargs["device"] = torch.device("cpu")
    is_drawn = IS_RANDOM in func.tags and of_cpu_kwargs.get("generator") is None
    with _current().draws() if is_drawn else contextlib.nullcontext():
        result = _on_cpu(func, of_cpu_args, of_cpu_kwargs)

    # An operation in place returns the tensor that it changed.
    if func is aten.copy_.default:
        return args[0]
    originals = {id(tensor.elements): tensor for tensor in on_device}

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, CudaTensor):
            return value
        original = originals.get(id(value))
        return CudaTensor(value) if original is None else original

    return tree_map(placed, result) if _is_there(func, args, kwargs, creates_there) else result


def _on_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation that does not involve the device, except that its memory may be
    page-locked.
    """
    if not kwargs.get("pin_memory"):
        return func(*args, **kwargs)
    result = func(*args, **{**kwargs, "pin_memory": False})
    result._is_page_locked = True
    return result


def _elements_of(value: Any) -> Any:
    return value.elements if isinstance(value, CudaTensor) else value


def _is_there(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], creates_there: bool
) -> bool:
    """Tell whether the result is on the device."""
    if func is aten._to_copy.default:
        # Copies to the CPU are made by `_function`; a backward pass names the device of the
        # elements here.
        return True
    if kwargs.get("device") is not None:
        return creates_there
    if func in TAKES_INDICES:
        return isinstance(args[0], CudaTensor)
    return True


def _refuse_mixed(
    func: Any, args: tuple[Any, ...], tensors: list[torch.Tensor], there: list[CudaTensor]
) -> None:
    """Raise torch's error for tensors of two devices; numbers, which are tensors of no
    dimension, may be of the CPU.
    """
    if func in COPIES or not there:
        return
    if func in TAKES_INDICES:
        if not isinstance(args[0], CudaTensor):
            raise RuntimeError(
                f"indices should be on the same device as the indexed tensor (cpu), in {func}"
            )
        return
    for tensor in tensors:
        if not isinstance(tensor, CudaTensor) and tensor.dim() > 0 and tensor.device.type == "cpu":
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! ({func}, shape {tuple(tensor.shape)})"
            )


def _count(func: Any, args: tuple[Any, ...], there: list[CudaTensor]) -> None:
    """Count what the host waits for."""
    if func in READS_VALUES and there:
        _current().wait(func.name())
    if func in TAKES_INDICES:
        indices = [index for index in tree_leaves(args[1]) if isinstance(index, torch.Tensor)]
        if any(_is_mask(index) for index in indices):
            _current().wait("index by a mask")
        for index in indices:
            if not isinstance(index, CudaTensor):
                _current().upload(index, non_blocking=False)
    if func is aten.copy_.default:
        target, source, *rest = args
        does_not_wait = bool(rest and rest[0])
        if (
            isinstance(target, CudaTensor)
            and not isinstance(source, CudaTensor)
            and source.dim() > 0
        ):
            _current().upload(source, does_not_wait)
        comes_back = isinstance(source, CudaTensor) and not isinstance(target, CudaTensor)
        if comes_back and not (does_not_wait and target.is_pinned()):
            _current().wait("copy to the CPU")


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


class _ToCpu(torch.autograd.Function):
    """Copy a tensor to the CPU; its gradient goes back to the device."""

    @staticmethod
    def forward(ctx: Any, tensor: CudaTensor) -> torch.Tensor:
        return tensor.elements.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return CudaTensor(gradient)


def _function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of torch: devices have an index, and copies to the CPU are made here."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": _with_index(kwargs["device"])}
    if func in (torch.Tensor.to, torch.Tensor.cuda):
        args = tuple(_with_index(value) for value in args)

    if func is torch.Tensor.cuda:
        return _moved((args[0], DEVICE), {k: v for k, v in kwargs.items() if k == "non_blocking"})
    if func is torch.Tensor.cpu and isinstance(args[0], CudaTensor):
        _current().wait("copy to the CPU")
        return _ToCpu.apply(args[0])
    if func is torch.Tensor.to:
        return _moved(args, kwargs)
    if func is torch.nn.functional.scaled_dot_product_attention:
        return _attention(func, *args, **kwargs)

    makes_from_values = func in (torch.tensor, torch.as_tensor, torch.asarray)
    if makes_from_values and kwargs.get("device") == DEVICE:
        return _made_from_values(func, args, kwargs)
    return func(*args, **kwargs)


@functools.cache
def _on_device(cls: type[torch.Tensor]) -> type[CudaTensor]:
    """Return a class of tensors on the device that are of another class, too."""
    return type(cls.__name__, (cls, CudaTensor), {})


def _with_index(device: Any) -> Any:
    is_device = isinstance(device, (str, torch.device))
    return DEVICE if is_device and str(device) == "cuda" else device


def _attention(
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> Any:
    """Compute attention; torch's own operations for dropout create the causal mask on the CPU."""
    if is_causal and dropout_p > 0:
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        kwargs["attn_mask"] = allowed.tril()
        is_causal = False
    elif mask is not None:
        kwargs["attn_mask"] = mask
    return func(query, key, value, dropout_p=dropout_p, is_causal=is_causal, **kwargs)


def _moved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute `Tensor.to`."""
    tensor, *rest = args
    target = kwargs.get("device", rest[0] if rest else None)
    if isinstance(target, torch.Tensor):
        rest = [target.device, target.dtype, *rest[1:]]
        args = (tensor, *rest)
        target = target.device
    if not isinstance(target, (str, torch.device)):
        return torch.Tensor.to(*args, **kwargs)
    kind = torch.device(target).type

    is_there = isinstance(tensor, CudaTensor)
    if is_there and kind == "cpu":
        if not kwargs.get("non_blocking"):
            _current().wait("copy to the CPU")
        dtype = kwargs.get(
            "dtype", next((value for value in rest if isinstance(value, torch.dtype)), None)
        )
        copied = _ToCpu.apply(tensor)
        return copied if dtype is None else copied.to(dtype)
    if is_there and kind == "cuda":
        rest = [value for value in rest if isinstance(value, torch.dtype)]
        kwargs = {
            name: value for name, value in kwargs.items() if name not in ("device", "non_blocking")
        }
        return torch.Tensor.to(tensor, *rest, **kwargs) if rest or kwargs else tensor
    if not is_there and kind == "cuda":
        _current().upload(tensor, bool(kwargs.get("non_blocking")))
    return torch.Tensor.to(*args, **kwargs)


def _made_from_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a tensor on the device from numbers, an array or another tensor."""
    source = args[0]
    options = {
        name: value for name, value in kwargs.items() if name not in ("device", "requires_grad")
    }
    if isinstance(source, CudaTensor):
        return torch.Tensor.to(source, **options) if options else source
    tensor = func(source, *args[1:], **options)
    _current().upload(tensor, non_blocking=False)
    return tensor.to(DEVICE).requires_grad_(kwargs.get("requires_grad", False))


class _Computes(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class _Copies(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _function(func, args, kwargs or {})


# Functions of torch.cuda
# ##############################################################################################


class Stream:
    """A stream whose operations have always ended."""

    device = DEVICE
    cuda_stream = 0
    stream_id = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def synchronize(self) -> None:
        _current().wait("Stream.synchronize")

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: Any) -> None: ...


class Event:
    """An event that is always over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, *args: Any) -> None: ...

    def synchronize(self) -> None:
        _current().wait("Event.synchronize")

    def wait(self, *args: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 1.0


def _always(value: Any) -> Any:
    """Return a new function with one result; `torch._dynamo` needs one for each name."""
    return lambda *args, **kwargs: value


def _of_cuda(device: PretendedDevice) -> dict[str, Any]:
    """Return what takes the place of functions of `torch.cuda`."""
    properties = types.SimpleNamespace(
        name=NAME,
        major=9,
        minor=0,
        total_memory=MEMORY,
        multi_processor_count=132,
        gcnArchName="",
        warp_size=32,
    )
    stream = Stream()
    generator = device.generator
    memory = (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "utilization",
    )
    nothing = (
        "_lazy_init",
        "init",
        "set_device",
        "set_stream",
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
    )
    return {
        **{name: _always(0) for name in memory},
        **{name: _always(None) for name in nothing},
        "is_available": _always(True),
        "is_initialized": _always(True),
        "_initialized": True,
        "_is_compiled": _always(True),
        "device_count": _always(1),
        "_device_count_nvml": _always(1),
        "current_device": _always(0),
        "get_device_name": _always(NAME),
        "get_device_capability": _always((9, 0)),
        "get_device_properties": _always(properties),
        "is_bf16_supported": _always(True),
        "can_device_access_peer": _always(False),
        "memory_stats": _always({}),
        "mem_get_info": _always((MEMORY, MEMORY)),
        "synchronize": lambda device=None: _current().wait("cuda.synchronize"),
        "is_current_stream_capturing": _always(False),
        "Stream": Stream,
        "Event": Event,
        "current_stream": _always(stream),
        "default_stream": _always(stream),
        "stream": lambda stream: contextlib.nullcontext(),
        "device": lambda device: contextlib.nullcontext(),
        "default_generators": (generator,),
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "get_rng_state": lambda device="cuda": generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": lambda state, device="cuda": generator.set_state(state),
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
    }


def _of_accelerator() -> dict[str, Any]:
    """Return what takes the place of functions of `torch.accelerator`."""
    return {
        "is_available": _always(True),
        "device_count": _always(1),
        "current_accelerator": _always(torch.device("cuda")),
        "current_device_index": _always(0),
        "current_device_idx": _always(0),
        "set_device_index": _always(None),
        "set_device_idx": _always(None),
        "current_stream": _always(Stream()),
        "set_stream": _always(None),
        "synchronize": lambda device=None: _current().wait("accelerator.synchronize"),
    }


def _of_others() -> list[tuple[Any, str, Any]]:
    """Return owner, name and replacement of other functions."""
    enter_autocast = torch.autocast.__init__
    group_tensors = torch._C._group_tensors_by_device_and_dtype
    load = torch.load

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if isinstance(tensor, CudaTensor):
            raise RuntimeError(
                "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
            )
        copy = tensor.clone()
        copy._is_page_locked = True
        return copy

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        return getattr(tensor, "_is_page_locked", False)

    def autocast(
        self: torch.autocast, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            enter_autocast(self, "cpu", dtype or torch.float16, *args, **kwargs)
        else:
            enter_autocast(self, device_type, dtype, *args, **kwargs)

    swap_tensors = torch.utils.swap_tensors

    def swap_with_hooks(parameter: Any, moved: Any) -> None:
        """Connect the hooks of a parameter with the tensor that it became, as torch keeps them
        on a real device.
        """
        swap_tensors(parameter, moved)
        parameter._backward_hooks = parameter._backward_hooks
        if parameter._post_accumulate_grad_hooks is not None:
            parameter._post_accumulate_grad_hooks = parameter._post_accumulate_grad_hooks

    def grouped(
        tensors: list[list[torch.Tensor | None]], with_indices: bool = False
    ) -> dict[Any, Any]:
        """Name the device of each group, which torch reads from the elements."""
        groups = group_tensors(tensors, with_indices)
        return {(first_of(group[0]).device, dtype): group for (_, dtype), group in groups.items()}

    def first_of(group: list[list[torch.Tensor | None]]) -> torch.Tensor:
        return next(tensor for tensor in group[0] if tensor is not None)

    plain = safe_serialization.to_plain

    def to_plain(value: Any) -> Any:
        """Let tensors of the device pass where those of torch's own class do."""
        return value if isinstance(value, CudaTensor) else plain(value)

    run = threading.Thread.run

    def run_on_device(thread: threading.Thread) -> None:
        """Run a thread with the modes, which belong to the thread that entered them."""
        with _Computes(), _Copies():
            run(thread)

    def of_cpu(function: Any) -> Any:
        """Return the function of autocast that is asked for the CPU, whichever device it is
        asked for.
        """
        return lambda device_type=None, *args: function("cpu" if device_type else None, *args)

    def loaded(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        is_there = (
            isinstance(map_location, (str, torch.device))
            and torch.device(map_location).type == "cuda"
        )
        content = load(file, map_location="cpu" if is_there else map_location, **kwargs)
        return tree_map(_onto_device, content) if is_there else content

    return [
        (torch.Tensor, "pin_memory", pin_memory),
        (torch.Tensor, "is_pinned", is_pinned),
        (torch.autocast, "__init__", autocast),
        (torch, "get_autocast_dtype", of_cpu(torch.get_autocast_dtype)),
        (torch, "load", loaded),
        (torch.utils, "swap_tensors", swap_with_hooks),
        (threading.Thread, "run", run_on_device),
        (safe_serialization, "to_plain", to_plain),
        (torch._C, "_group_tensors_by_device_and_dtype", grouped),
        (torch.version, "cuda", "12.8"),
        (torch.cuda.memory, "memory_allocated", _always(0)),
        (torch._C, "_cuda_isCurrentStreamCapturing", _always(False)),
        (torch._C, "_cuda_getCurrentRawStream", _always(0)),
        *(
            (torch._C, name, _always(0))
            for name in ("_cuda_setDevice", "_cuda_exchangeDevice", "_cuda_getDevice")
        ),
        (torch._C, "_cuda_maybeExchangeDevice", _always(0)),
        (torch._C, "_cuda_record_memory_history", _always(None)),
        (torch._C, "_cuda_memorySnapshot", _always({"segments": [], "device_traces": []})),
    ]


def _onto_device(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


def _forget_devices() -> None:
    """Let the package look for devices again, which it remembers for each process."""
    for remembered in vars(process).values():
        if hasattr(remembered, "cache_clear"):
            remembered.cache_clear()


@contextlib.contextmanager
def pretended_device() -> Iterator[PretendedDevice]:
    """Pretend that this process has one CUDA device, until the end of the block."""
    global _pretended
    _forget_devices()
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    device = PretendedDevice()
    with contextlib.ExitStack() as stack:
        replaced = _of_others()
        replaced += [(torch.cuda, name, value) for name, value in _of_cuda(device).items()]
        replaced += [(torch.accelerator, name, value) for name, value in _of_accelerator().items()]
        random = (
            "get_rng_state_all",
            "set_rng_state_all",
            "get_rng_state",
            "set_rng_state",
            "manual_seed_all",
        )
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        for name in random:
            stack.enter_context(
                mock.patch.object(torch.cuda.random, name, getattr(torch.cuda, name))
            )

        # `Module.to` then exchanges the parameters themselves, instead of setting their `data` to
        # another class.
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        _pretended = device
        stack.enter_context(_Computes())
        stack.enter_context(_Copies())
        try:
            yield device
        finally:
            _pretended = None
            _forget_devices()
