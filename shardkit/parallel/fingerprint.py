"""A fingerprint of model, policy and configuration, which all ranks must have in common.

    facts_of(model, config, policy)
        --> {"the policy": "FSDP", "seed": "0", ..., "parameter head.weight": "(3, 8) float32 ..."}

Ranks that differ in any of it would wait for each other forever, or silently train replicas apart.
Initial values are a function of an initializer, a seed and a name, which are compared; values that
were put into a parameter are compared by a checksum.
"""

import zlib
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import numpy

from ..array.backend import is_device_array, to_host
from ..layout.policy import Policy
from ..nn.kept import MAKING
from ..nn.module import Buffer, Module, Parameter, blocks_of, configuration_of
from ..optim.groups import ParameterGroup

_PLAIN = (bool, int, float, complex, str, bytes, type(None), numpy.generic)
_OF_THIS_RANK = ("backend", "check")  # `check` is compared together with the environment
_first_texts: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of losses


def facts_of(model: Module, config, policy: Policy) -> dict[str, str]:
    """Return {what: its value as text}, in the order in which a difference is best understood.

    No communication.
    """
    settings = {
        field.name: describe(getattr(config, field.name))
        for field in fields(config)
        if field.name not in _OF_THIS_RANK
    }
    return {
        "the policy": policy.name,
        "the model": describe(type(model)),
        **settings,
        "loss": describe_loss(config.loss),
        "checked mode": str(config.is_checked),
        "the model's loss": describe_loss(model.loss),
        **_facts_of_model(model, config.seed),
    }


def _facts_of_model(model, seed):
    sizes = {f"the model's {name}": describe(value) for name, value in _arguments(model).items()}
    blocks = {
        f"block {index}": f"{name or 'the model'}, a {type(block).__name__}"
        for index, (name, block) in enumerate(blocks_of(model))
    }
    modules = {
        f"module {path or '(the model)'}": describe_settings(module)
        for path, module in model.named_modules().items()
    }
    parameters = {
        f"parameter {name}": _describe_parameter(parameter, seed)
        for name, parameter in model.named_parameters().items()
    }
    buffers = {
        f"buffer {name}": _describe_buffer(buffer, seed)
        for name, buffer in model.named_buffers().items()
    }
    return {**sizes, **blocks, **modules, **parameters, **buffers}


def _arguments(model: Module) -> dict:
    """Return the arguments that ranks must have in common: those of other classes may be a rank's
    own, unless the class says that they build the same model.
    """
    says_none = type(model).configuration is Module.configuration
    return {} if says_none and not _is_ours(type(model)) else configuration_of(model)


def _is_ours(thing) -> bool:
    module = getattr(thing, "__module__", None) or ""
    return module.partition(".")[0] == __name__.partition(".")[0]


def _describe_parameter(parameter: Parameter, seed) -> str:
    """Return its whole shape, dtype, and the origin of its values, unless it is cut."""
    kind = f"{parameter.global_shape} {parameter.dtype}, requires_grad {parameter.requires_grad}"
    if parameter.is_fresh:
        seed = seed if parameter.seed is None else parameter.seed
        return f"{kind}, {describe(parameter.init)} of seed {seed}"
    is_whole = parameter.claim is None and not parameter.is_released
    return f"{kind}, values {_checksum(parameter.array)}" if is_whole else kind


def _describe_buffer(buffer: Buffer, seed) -> str:
    """Return its shape, dtype, and the origin of its values, unless they are a sharded model's."""
    kind = f"{buffer.shape} {buffer.dtype}"
    if buffer.is_fresh:
        seed = seed if buffer.seed is None else buffer.seed
        return f"{kind}, {describe(buffer.init)} of seed {seed}"
    return kind if buffer.is_sharded else f"{kind}, values {_checksum(buffer.array)}"


def describe(value) -> str:
    """Return a setting as text that is equal, on any rank, for settings that train equally.

    Objects are described by their names and settings, functions by their names, defaults and code,
    so that two lambdas differ; what a function has from around it, and defaults that are no plain
    values, may be a rank's own.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, ParameterGroup):
        return f"ParameterGroup({describe(vars(value))})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(describe, value))}]"
    if isinstance(value, dict):
        entries = [f"{describe(key)}: {describe(entry)}" for key, entry in value.items()]
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, numpy.ndarray) or is_device_array(value):
        return f"{value.dtype} {value.shape} {_checksum(value)}"
    if isinstance(value, partial):
        return f"{describe(value.func)} with {describe(value.args)} {describe(value.keywords)}"
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return f"{value.__qualname__}{_says_code(value)}"
    if is_dataclass(value):
        entries = [
            f"{field.name}={describe(getattr(value, field.name))}" for field in fields(value)
        ]
        return f"{type(value).__qualname__}({', '.join(entries)})"
    return f"{type(value).__qualname__}({_settings(value)})"


def describe_loss(loss) -> str:
    """Return a loss as text; of an object of a user the text as it was when it was first asked for:
    what it has seen since, such as the terms of the last batch, is its rank's own.
    """
    text = describe(loss)
    try:
        return text if _is_ours(type(loss)) else _first_texts.setdefault(loss, text)
    except TypeError:  # it has no hash, or takes no weak reference
        return text


def _says_code(function) -> str:
    """Return what tells a function of a user from others of its name; "" for what is no such.

    What wraps a function (functools.wraps, a compiler) is told with all that it wraps.
    """
    texts: dict[int, str] = {}  # by id: one may say that it wraps itself
    while function is not None and not _is_ours(function) and id(function) not in texts:
        texts[id(function)] = _text_of_function(function)
        function = getattr(function, "__wrapped__", None)
    said = " ".join(filter(None, texts.values()))
    return f" with code {zlib.crc32(said.encode()):08x}" if said else ""


def _text_of_function(function) -> str:
    """Return the code and defaults of a function as text; "" for what has no code of its own."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    positional = getattr(function, "__defaults__", None)  # compiled functions may have none
    by_name = getattr(function, "__kwdefaults__", None) or {}
    defaults = [_text_of_default(positional), [*by_name], _text_of_default((*by_name.values(),))]
    return f"{_text_of(code)} {defaults}"


def _text_of_default(value) -> str:
    """Return a default of a function as text: of what calls may change, or a rank has for itself
    (a list of losses so far, a log), the kind alone.
    """
    if isinstance(value, tuple):
        return f"({', '.join(map(_text_of_default, value))})"
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        return _text_of(code)
    is_told = isinstance(value, (*_PLAIN, numpy.ndarray, type))
    return describe(value) if is_told else type(value).__qualname__


def _text_of(code: CodeType) -> str:
    """Return what a function computes as text; not where it stands, which says nothing of it."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_text_of(constant))
        elif isinstance(constant, frozenset):  # in an order of this process
            constants.append(str(sorted(map(repr, constant))))
        else:
            constants.append(repr(constant))
    return repr((code.co_code, code.co_names, constants))


def describe_settings(module: Module) -> str:
    """Return a module's class and, if the class is of this package, its settings.

    Attributes of other classes may belong to one rank alone.
    """
    return f"{type(module).__qualname__}({_settings(module) if _is_ours(type(module)) else ''})"


def _settings(thing) -> str:
    """Return the attributes that are plain values; None may be a table that is not made yet."""
    attributes = sorted(getattr(thing, "__dict__", {}).items())
    return ", ".join(
        f"{name}={describe(value)}"
        for name, value in attributes
        if name not in ("path_in_model", MAKING) and value is not None and _is_plain(value)
    )


def _is_plain(value) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _checksum(array) -> str:
    return f"checksum {zlib.crc32(numpy.ascontiguousarray(to_host(array))):08x}"
