/* The functions of shardkit.h: each asks shardkit/coupling/embedding.py. Valid in C99 and C++. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "shardkit.h"

#include <fenv.h>
#include <signal.h>
#include <stdarg.h>

static const char built_for[] = {SHARDKIT_PYTHON, 0}; /* the path of the interpreter */
static PyObject *embedding; /* what answers, from the first sk_start() on */
static __thread char sentence[4096];

static int failed(int code, const char *call, const char *why, const char *hint) {
    snprintf(sentence, sizeof sentence, "sk_%s(): %s%s", call, why, hint);
    return code;
}

static int failed_in_python(const char *call, const char *hint) {
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *why = text ? PyUnicode_AsUTF8(text) : NULL;
    failed(SK_ERROR_PYTHON, call, why ? why : "Python has raised without a word", hint);
    PyErr_Clear();
    Py_XDECREF(text), Py_XDECREF(kind), Py_XDECREF(value), Py_XDECREF(traceback);
    return SK_ERROR_PYTHON;
}

static int check_mpi(const char *call) {
    int is_begun = 0, is_over = 0, level = MPI_THREAD_SINGLE, is_main = 0;
    MPI_Initialized(&is_begun);
    MPI_Finalized(&is_over);
    if (!is_begun || is_over)
        return failed(SK_ERROR_MPI, call, is_over ? "MPI is finalized" : "MPI is not initialized",
                      "; wanted all calls between MPI_Init_thread() and MPI_Finalize()");
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&is_main);
    if (is_main || level >= MPI_THREAD_SERIALIZED) return SK_OK;
    return failed(SK_ERROR_MPI, call, "a thread other than the one that initialized MPI",
                  "; ask MPI_Init_thread() for MPI_THREAD_SERIALIZED, or call in that one");
}

/* The host's locale, signals and arguments stay its own. */
static int begin_python(void) {
    const char *python = getenv("SHARDKIT_PYTHON");
    struct sigaction of_host;
    PyPreConfig first;
    PyConfig config;
    PyPreConfig_InitPythonConfig(&first);
    first.configure_locale = first.coerce_c_locale = first.parse_argv = 0;
    first.utf8_mode = 1;
    PyStatus status = Py_PreInitialize(&first);
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = config.parse_argv = 0;
    if (!PyStatus_Exception(status))
        status = PyConfig_SetBytesString(&config, &config.program_name,
                                         python ? python : built_for);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        return failed(SK_ERROR_PYTHON, "start", "no interpreter: ", status.err_msg);
    sigaction(SIGINT, NULL, &of_host);
    Py_XDECREF(PyImport_ImportModule("signal")); /* it takes Ctrl-C, whoever imports it first */
    sigaction(SIGINT, &of_host, NULL);
    PyEval_SaveThread(); /* any thread of the host may call, and others of Python run meanwhile */
    return SK_OK;
}

static int import_embedding(void) {
    PyObject *room = PyImport_ImportModule("shardkit.coupling.embedding");
    if (room != NULL) embedding = PyObject_CallMethod(room, "EmbeddedCoupling", NULL);
    Py_XDECREF(room);
    if (embedding != NULL) return SK_OK;
    return failed_in_python("start", "; wanted a Python with shardkit: build with its `shardkit"
                            " flags`, or set SHARDKIT_PYTHON to it");
}

static int asked(double *number, const char *call, PyObject *arguments) {
    const char *why;
    int code;
    double value;
    PyObject *method = arguments ? PyObject_GetAttrString(embedding, call) : NULL;
    PyObject *answer = method ? PyObject_CallObject(method, arguments) : NULL;
    Py_XDECREF(method), Py_XDECREF(arguments);
    if (answer == NULL || !PyArg_ParseTuple(answer, "isd", &code, &why, &value))
        return failed_in_python(call, "");
    failed(code, call, why, "");
    if (code == SK_OK) sentence[0] = 0;
    if (code == SK_OK && number != NULL) *number = value;
    Py_DECREF(answer);
    return code;
}

/* Calls a method of the embedding, with arguments as Py_BuildValue() takes them. */
static int ask(double *number, const char *call, const char *format, ...) {
    int code = check_mpi(call);
    va_list arguments;
    fenv_t of_host;
    if (code != SK_OK) return code;
    if (embedding == NULL && strcmp(call, "start"))
        return failed(SK_ERROR_ORDER, call, "no coupling is open", "; call sk_start() before");
    if (embedding != NULL && !Py_IsInitialized())
        return failed(SK_ERROR_PYTHON, call, "the interpreter was finalized", "; keep it");
    fegetenv(&of_host);
    fesetenv(FE_DFL_ENV); /* no traps for NumPy, whatever the host traps, and its rounding */
    if (!Py_IsInitialized()) code = begin_python();
    if (code == SK_OK) {
        PyGILState_STATE lock = PyGILState_Ensure();
        if (embedding == NULL) code = import_embedding();
        va_start(arguments, format);
        if (code == SK_OK) code = asked(number, call, Py_VaBuildValue(format, arguments));
        va_end(arguments);
        PyGILState_Release(lock);
    }
    fesetenv(&of_host);
    return code;
}

static PyObject *seen(void *given) {
    const sk_array *array = (const sk_array *)given;
    if (array == NULL) Py_RETURN_NONE;
    return Py_BuildValue("(Kziy#y#)", (unsigned long long)(uintptr_t)array->values, array->dtype,
                         array->num_dims, (const char *)array->shape,
                         (Py_ssize_t)sizeof array->shape, (const char *)array->strides,
                         (Py_ssize_t)sizeof array->strides);
}

int sk_start(MPI_Comm comm, int trainers, const char *options) {
    int code = check_mpi("start");
    if (code != SK_OK) return code;
    if (comm == MPI_COMM_NULL) return failed(SK_ERROR_ARGUMENT, "start", "MPI_COMM_NULL", "");
    return ask(NULL, "start", "(iiz)", (int)MPI_Comm_c2f(comm), trainers, options);
}

int sk_solvers(MPI_Comm *comm) {
    double handle = 0;
    int code = ask(&handle, "solvers", "()");
    *comm = code == SK_OK ? MPI_Comm_f2c((MPI_Fint)handle) : MPI_COMM_NULL;
    return code;
}

int sk_field(const char *name, const sk_array *array) {
    return ask(NULL, "field", "(zO&)", name, seen, array);
}

int sk_put(double time, double weight) { return ask(NULL, "put", "(dd)", time, weight); }

int sk_predict(const sk_array *x, const sk_array *y) {
    return ask(NULL, "predict", "(O&O&)", seen, x, seen, y);
}

int sk_steered(const char *name, double *values, int room, int *count) {
    double found = 0;
    sk_array place = {values, "float64", 1, {room}, {0}};
    int code = ask(&found, "steered", "(zO&)", name, seen, &place);
    *count = (int)found;
    return code;
}

int sk_is_training(int *is_training) {
    double found = 0;
    int code = ask(&found, "is_training", "()");
    *is_training = found != 0;
    return code;
}

int sk_finish(void) { return ask(NULL, "finish", "()"); }

int sk_close(void) { return ask(NULL, "close", "()"); }

const char *sk_last_error(void) { return sentence; }
