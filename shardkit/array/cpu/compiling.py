"""Compile a loop for a target, with Numba and LLVM, into an image that needs neither.

    loop in Python --Numba--> LLVM's module of the target --entry, helpers--> object --> image

The entry is the function that Python calls. It compares the types of the arguments with those that
the loop was compiled for, takes pointers, lengths and numbers out of them, releases the GIL, and
calls the loop. So a call has no layer of Python between, and neither has the choice of the code.
"""

import functools
from contextlib import contextmanager

import llvmlite.binding
import numpy
from llvmlite import ir
from numba.core import codegen, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np import arrayobj, numpy_support

from . import images, notation
from .helpers import HELPERS
from .images import Image
from .linking import linked
from .signatures import BYTES, READ_ONLY_BYTES, class_named, parts_of
from .targets import Target

ENTRY = "shardkit_entry"
WORD = ir.IntType(64)
INT = ir.IntType(32)
POINTER = ir.IntType(8).as_pointer()


# ---- Numba for a target --------------------------------------------------------------------------


class _Library(codegen.AOTCodeLibrary):
    """Code that becomes an object file, or a part of one; this process does not run it.

    Numba would optimize each formula for itself, and again within every other that calls it, and
    link it into each of them. That is most of LLVM's work, and the whole loop comes out the same
    without it: so formulas are linked and optimized once, at the end (image_of).
    """

    def _optimize_functions(self, ll_module):
        """Do nothing yet."""

    def finalize(self):
        """Link nothing yet."""
        self._raise_if_finalized()
        self._finalized = True

    def optimized(self, texts):
        """Return a module of this code, all that it calls and these texts in LLVM's language, and
        optimize it.
        """
        self._ensure_finalized()
        kept, self._final_module = self._final_module, self._final_module.clone()
        try:
            for module in self._modules_called():
                self._final_module.link_in(module, preserve=True)
            for text in texts:
                self._final_module.link_in(llvmlite.binding.parse_assembly(text))
            self._optimize_final_module()
            return self._final_module
        finally:
            self._final_module = kept

    def _modules_called(self):
        """Return the modules that this one needs, and those that these need.

        Numba's own come last: only what is called by then is taken from them.
        """
        found: dict[_Library, None] = {self: None}
        missing, own = list(self._linking_libraries), {}
        while missing:
            library = missing.pop()
            if not isinstance(library, _Library):
                own[library] = library._get_module_for_linking()
            elif library not in found:
                found[library] = None
                missing += library._linking_libraries
        return [*(library._final_module for library in found if library is not self), *own.values()]

    def get_pointer_to_function(self, name):
        """Return a number that only this function has: Numba tells functions apart by it."""
        return self.codegen.number_of(self, name)


class _Codegen(codegen.AOTCPUCodegen):
    """Numba's code generator for a target."""

    _library_class = _Library

    def __init__(self, target: Target):
        self._target = target
        self._numbers: dict = {}
        super().__init__("shardkit")

    def number_of(self, library, name):
        return self._numbers.setdefault((library, name), len(self._numbers) + 1)

    def set_env(self, env_name, env):
        """Do nothing: loops use nothing of Python."""

    def _customize_tm_options(self, options):
        super()._customize_tm_options(options)
        options["cpu"] = self._target.cpu or llvmlite.binding.get_host_cpu_name()

    def _customize_tm_features(self):
        return self._target.features if self._target.cpu else codegen.get_host_cpu_features()


_CODEGENS: dict[Target, _Codegen] = {}


@contextmanager
def _generating(target: Target):
    """Let Numba generate code for a target inside."""
    context = cpu_target.target_context
    if target not in _CODEGENS:
        _CODEGENS[target] = _Codegen(target)
    before, context._internal_codegen = context._internal_codegen, _CODEGENS[target]
    try:
        yield
    finally:
        context._internal_codegen = before


@global_compiler_lock
def image_of(loop: notation.Formula, signature: tuple[str, ...], target: Target) -> Image:
    """Return the machine code of a loop for arguments of these types."""
    notation.load()
    with _generating(target):
        dispatcher = loop.in_numba
        kinds = tuple(map(type_named, signature))
        dispatcher.compile(kinds)
        compiled = dispatcher.overloads[kinds]
        entry = _Entry(compiled, dispatcher.py_func.__qualname__)
        module = compiled.library.optimized((entry.text(signature), HELPERS))
        for function in module.functions:
            if not function.is_declaration and function.name != ENTRY:
                function.linkage = "internal"
        _remove_unused(module)
        return linked(_CODEGENS[target]._tm.emit_object(module), ENTRY)


def _remove_unused(module):
    machine = cpu_target.target_context.codegen()._tm
    builder = llvmlite.binding.create_pass_builder(
        machine, llvmlite.binding.create_pipeline_tuning_options(0)
    )
    passes = llvmlite.binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, builder)


def type_named(text: str) -> types.Type:
    """Return Numba's type for a part of a signature (signatures.py)."""
    tuple_parts = parts_of(text)
    if tuple_parts is not None:
        name, parts = tuple_parts
        kinds = tuple(map(type_named, parts))
        return types.BaseTuple.from_types(kinds, class_named(name) if name else None)
    if text in (BYTES, READ_ONLY_BYTES):
        return types.Array(types.uint8, 1, "C", readonly=text == READ_ONLY_BYTES)
    name, opening, rest = text.partition("[")
    kind = types.boolean if name == "bool" else numpy_support.from_dtype(numpy.dtype(name))
    if not opening:
        return kind
    return types.Array(kind, int(rest.rstrip("]!")), "C", readonly=rest.endswith("!"))


# ---- the entry -----------------------------------------------------------------------------------


class _Entry:
    """The module with the function that Python calls.

    compiled   what Numba returns of a loop
    """

    def __init__(self, compiled, name: str):
        self._loop, self._signature = compiled.fndesc, compiled.signature
        self._name = name
        self._context = compiled.target_context
        self._module = self._context.create_module("entry")
        form = ir.FunctionType(POINTER, [POINTER, POINTER.as_pointer(), WORD])
        self._function = ir.Function(self._module, form, ENTRY)
        self._builder = ir.IRBuilder(self._function.append_basic_block("begin"))
        self._other_types = self._function.append_basic_block("other_types")

    def text(self, signature) -> str:
        """Return the module as text."""
        builder, kinds = self._builder, self._signature.args
        _, given, count = self._function.args
        self._otherwise_not(builder.icmp_signed("==", count, WORD(len(kinds))))
        values = []
        for number, (kind, text) in enumerate(zip(kinds, signature)):
            place = builder.gep(given, [WORD(number)])
            values.append(self._value(kind, text, builder.load(place)))
        state = self._call("PyEval_SaveThread", POINTER)
        callee = self._context.declare_function(self._module, self._loop)
        status, result = self._context.call_conv.call_function(
            builder, callee, self._signature.return_type, kinds, values
        )
        self._call("PyEval_RestoreThread", ir.VoidType(), state)
        with builder.if_then(status.is_error, likely=False):
            error = builder.load(self._variable("PyExc_RuntimeError", POINTER))
            self._call("PyErr_SetString", ir.VoidType(), error, self._string())
            builder.ret(POINTER(None))
        builder.ret(self._object(self._signature.return_type, result))
        builder.position_at_end(self._other_types)
        self._write_other_types()
        return str(self._module)

    # ---- from objects of Python ------------------------------------------------------------------

    def _value(self, kind, text, given):
        if isinstance(kind, types.BaseTuple):
            return self._tuple_value(kind, text, given)
        if isinstance(kind, types.Array):
            return self._array_value(kind, given, text in (BYTES, READ_ONLY_BYTES))
        return self._number_value(kind, text, given)

    def _tuple_value(self, kind, text, given):
        builder, (name, parts) = self._builder, parts_of(text)
        if name:
            self._otherwise_not(self._is_subtype(given, "PyTuple_Type"))
        else:
            self._otherwise_not(self._has_type(given, "PyTuple_Type"))
        length = self._field(given, images.TUPLE_SIZE_AT, WORD)
        self._otherwise_not(builder.icmp_signed("==", length, WORD(len(parts))))
        items = [
            self._value(one, part, self._field(given, images.TUPLE_ITEMS_AT + 8 * number, POINTER))
            for number, (one, part) in enumerate(zip(kind.types, parts))
        ]
        return self._context.make_tuple(builder, kind, items)

    def _number_value(self, kind, text, given):
        builder = self._builder
        accepted = {"int64": ["PyLong_Type"], "float64": ["PyFloat_Type"], "bool": ["PyBool_Type"]}
        names = [f"type.{one.type.__name__}" for one in _variants_of(numpy.dtype(text))]
        checks = [self._has_type(given, name) for name in (*accepted.get(text, ()), *names)]
        self._otherwise_not(functools.reduce(builder.or_, checks))
        into = self._context.get_value_type(kind)
        if kind == types.boolean:
            return builder.icmp_signed(
                "==", self._call("PyObject_IsTrue", INT, given), INT(1), "is_true"
            )
        if isinstance(kind, types.Float):
            number = self._call("PyFloat_AsDouble", ir.DoubleType(), given)
            self._otherwise_fail()
            return number if into == number.type else builder.fptrunc(number, into)
        if kind == types.uint64:
            index = self._call("PyNumber_Index", POINTER, given)
            number = self._call("PyLong_AsUnsignedLongLong", WORD, index)
            self._call("Py_DecRef", ir.VoidType(), index)
        else:
            number = self._call("PyLong_AsLongLong", WORD, given)
        self._otherwise_fail()
        return number if into == number.type else builder.trunc(number, into)

    def _array_value(self, kind, given, is_bytes):
        """Return an array as Numba has it; of any dtype where it is taken as bytes."""
        builder = self._builder
        self._otherwise_not(self._is_subtype(given, "type.ndarray"))
        ndim = self._field(given, images.ARRAY_NDIM_AT, INT)
        flags = self._field(given, images.ARRAY_FLAGS_AT, INT)
        wanted = images.CONTIGUOUS | (images.WRITABLE if kind.mutable else 0)
        wanted |= 0 if is_bytes else images.ALIGNED
        dtype = self._field(given, images.ARRAY_DTYPE_AT, POINTER)
        checks = [
            builder.icmp_signed("==", ndim, INT(kind.ndim)),
            builder.icmp_signed("==", builder.and_(flags, INT(wanted)), INT(wanted)),
        ]
        if not is_bytes:
            checks += self._dtype_checks(kind, dtype)
        self._otherwise_not(functools.reduce(builder.and_, checks))
        array = self._context.make_array(kind)(self._context, builder)
        shape, strides = (
            self._words(self._field(given, at, WORD.as_pointer()), kind.ndim)
            for at in (images.ARRAY_SHAPE_AT, images.ARRAY_STRIDES_AT)
        )
        element = self._context.get_data_type(kind.dtype)
        start = self._field(given, images.ARRAY_DATA_AT, element.as_pointer())
        item_bytes = WORD(self._context.get_abi_sizeof(element))
        if is_bytes:
            shape = [builder.mul(shape[0], self._field(dtype, images.DTYPE_ITEM_BYTES_AT, WORD))]
            strides = [item_bytes]
        arrayobj.populate_array(array, start, shape, strides, item_bytes, None)
        return array._getvalue()

    def _dtype_checks(self, kind, dtype):
        builder = self._builder
        number = self._field(dtype, images.DTYPE_NUMBER_AT, INT)
        order = self._field(dtype, images.DTYPE_BYTEORDER_AT, ir.IntType(8))
        variants = [
            builder.icmp_signed("==", number, INT(one.num))
            for one in _variants_of(numpy_support.as_dtype(kind.dtype))
        ]
        return [
            functools.reduce(builder.or_, variants),
            builder.icmp_signed("!=", order, ir.IntType(8)(ord(_OTHER_ORDER))),
        ]

    def _words(self, start, count):
        builder = self._builder
        return [builder.load(builder.gep(start, [WORD(number)])) for number in range(count)]

    def _field(self, given, at, kind):
        place = self._builder.gep(given, [WORD(at)])
        return self._builder.load(self._builder.bitcast(place, kind.as_pointer()))

    def _has_type(self, given, name):
        wanted = self._variable(name, ir.IntType(8))
        return self._builder.icmp_unsigned(
            "==", self._field(given, images.TYPE_AT, POINTER), wanted
        )

    def _is_subtype(self, given, name):
        builder = self._builder
        found = self._field(given, images.TYPE_AT, POINTER)
        wanted = self._variable(name, ir.IntType(8))
        is_same = builder.icmp_unsigned("==", found, wanted)
        before = builder.block
        with builder.if_then(builder.not_(is_same), likely=False):
            is_below = builder.trunc(
                self._call("PyType_IsSubtype", INT, found, wanted), ir.IntType(1)
            )
            within = builder.block
        result = builder.phi(ir.IntType(1))
        result.add_incoming(ir.IntType(1)(1), before)
        result.add_incoming(is_below, within)
        return result

    # ---- to objects of Python --------------------------------------------------------------------

    def _object(self, kind, value):
        builder = self._builder
        if isinstance(kind, (types.NoneType, types.Omitted)):
            return self._new_reference("_Py_NoneStruct")
        if kind == types.boolean:
            return self._call("PyBool_FromLong", POINTER, builder.zext(value, WORD))
        if isinstance(kind, types.Float):
            wide = value if kind == types.float64 else builder.fpext(value, ir.DoubleType())
            return self._call("PyFloat_FromDouble", POINTER, wide)
        if isinstance(kind, types.Integer):
            name = "PyLong_FromLongLong" if kind.signed else "PyLong_FromUnsignedLongLong"
            extend = builder.sext if kind.signed else builder.zext
            return self._call(name, POINTER, value if kind.bitwidth == 64 else extend(value, WORD))
        raise TypeError(f"loop {self._name} returns {kind}; it can return a number, or nothing")

    def _new_reference(self, name):
        known = self._variable(name, ir.IntType(8))
        self._call("Py_IncRef", ir.VoidType(), known)
        return known

    # ---- ways out --------------------------------------------------------------------------------

    def _otherwise_not(self, condition):
        """Go to where arguments of other types go unless the condition holds."""
        follows = self._function.append_basic_block("follows")
        self._builder.cbranch(condition, follows, self._other_types)
        self._builder.position_at_end(follows)

    def _write_other_types(self):
        """Call the function that Python calls this one with; without one return NotImplemented."""
        builder = self._builder
        otherwise, given, count = self._function.args
        with builder.if_then(builder.icmp_unsigned("!=", otherwise, POINTER(None))):
            builder.ret(
                self._call("PyObject_Vectorcall", POINTER, otherwise, given, count, POINTER(None))
            )
        builder.ret(self._new_reference("_Py_NotImplementedStruct"))

    def _otherwise_fail(self):
        """Return NULL if Python has an error."""
        error = self._call("PyErr_Occurred", POINTER)
        is_error = self._builder.icmp_unsigned("!=", error, POINTER(None))
        with self._builder.if_then(is_error, likely=False):
            self._builder.ret(POINTER(None))

    # ---- names -----------------------------------------------------------------------------------

    def _call(self, name, returns, *arguments):
        form = ir.FunctionType(returns, [argument.type for argument in arguments])
        function = self._module.globals.get(name) or ir.Function(self._module, form, name)
        return self._builder.call(function, arguments)

    def _variable(self, name, kind):
        return self._module.globals.get(name) or ir.GlobalVariable(self._module, kind, name)

    def _string(self):
        text = f"loop {self._name} met an error\0".encode()
        kind = ir.ArrayType(ir.IntType(8), len(text))
        variable = ir.GlobalVariable(self._module, kind, "shardkit_message")
        variable.linkage, variable.global_constant = "private", True
        variable.initializer = kind(bytearray(text))
        return self._builder.bitcast(variable, POINTER)


_OTHER_ORDER = numpy.dtype("i4").newbyteorder("S").byteorder


def _variants_of(dtype) -> list[numpy.dtype]:
    """Return the dtypes that are the same to us: NumPy tells long from long long."""
    return [one for one in map(numpy.dtype, "?bBhHiIlLqQefd") if one == dtype]
