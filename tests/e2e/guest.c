/* A program that embeds Python: it initializes MPI, lets Python train on some ranks, computes on, and finalizes MPI.

   guest SCRIPT LEVEL COMM PYTHON WORDS

   LEVEL    that MPI_Init_thread is asked for, as a number
   COMM     world; half: the first rank starts no Python; none: Python is handed no communicator
   PYTHON   ended: the interpreter is finalized before MPI; open: it is not
   WORDS    for the script: "KEY=VALUE KEY=VALUE" */

#include <Python.h>
#include <mpi.h>
#include <mpi4py/mpi4py.h>
#include <string.h>
#include <unistd.h>

static int failed(const char *what) {
    fprintf(stderr, "failed: %s\n", what);
    return MPI_Abort(MPI_COMM_WORLD, 9);
}

static int run(const char *path, MPI_Comm comm, int is_given, const char *words) {
    Py_Initialize();
    PyObject *names = PyModule_GetDict(PyImport_AddModule("__main__"));
    PyObject *text = PyUnicode_FromString(words);
    PyDict_SetItemString(names, "words", text);
    Py_DECREF(text);
    if (is_given) {
        if (import_mpi4py() < 0) return failed("import_mpi4py");
        PyObject *object = PyMPIComm_New(comm);
        PyDict_SetItemString(names, "comm", object);
        Py_DECREF(object);
    }
    FILE *file = fopen(path, "r");
    return file == NULL || PyRun_SimpleFileEx(file, path, 1) ? failed("the script") : 0;
}

int main(int argc, char **argv) {
    int rank, level, before, after;
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Errhandler fatal, first, then;
    if (argc != 6) return 2;
    int is_half = !strcmp(argv[3], "half"), is_given = strcmp(argv[3], "none");
    MPI_Init_thread(NULL, NULL, atoi(argv[2]), &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Query_thread(&before);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &first);
    fatal = MPI_ERRORS_ARE_FATAL;
    if (first != fatal) failed("another error handler than MPI's default");
    if (is_half) MPI_Comm_split(MPI_COMM_WORLD, rank > 0, rank, &comm);
    if (!is_half || rank > 0) {
        run(argv[1], comm, is_given, argv[5]);
        if (!strcmp(argv[4], "ended")) Py_FinalizeEx();
    }
    MPI_Query_thread(&after);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &then);
    if (after != before) failed("another thread level");
    if (!is_given && then != first) failed("another error handler"); /* else mpi4py has set it */
    sleep(3); /* the program computes */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    printf("rank %d reached its end\n", rank);
    fflush(stdout);
    sleep(3); /* and goes on */
    return 0;
}
