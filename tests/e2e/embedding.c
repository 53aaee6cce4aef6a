/* Calls of shardkit.h that are right and wrong: a line "name: code sentence" of each.

   embedding LEVEL COMPANION
   LEVEL      that MPI_Init_thread is asked for, as a number
   COMPANION  trainer: rank 1 is embedding_rank.py; none: there is no other rank;
              python: nor is there one, and this program has its own interpreter, which it ends */

#define _GNU_SOURCE
#include <Python.h>
#include <fenv.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <shardkit.h>
#include <signal.h>

static float x[3] = {1, 2, 3}, y[1] = {4}, output[2][1];
static sk_array of_x = {x, "float32", 1, {3}}, of_y = {y, "float32", 1, {1}};

static int told(const char *name, int code) {
    printf("%s: %d %s\n", name, code, sk_last_error());
    fflush(stdout);
    return code;
}

static void *puts_in_a_thread(void *name) {
    int code = SK_OK;
    for (int put = 0; put < 20 && code == SK_OK; put++) code = sk_put(NAN, 1.0);
    if (name != NULL) told((const char *)name, code);
    return NULL;
}

static void two_threads_put(int level) {
    pthread_t other;
    pthread_create(&other, NULL, puts_in_a_thread, (void *)"in a thread");
    if (level == MPI_THREAD_MULTIPLE) puts_in_a_thread(NULL);
    pthread_join(other, NULL);
}

static void steered(const char *name, int room) {
    double values[2] = {0, 0};
    int count, code = sk_steered(name, values, room, &count);
    printf("steered %s: %d %d %g %g %s\n", name, code, count, values[0], values[1],
           sk_last_error());
}

static void predict(void) {
    float two[2][3] = {{1, 2, 3}, {4, 5, 6}};
    sk_array of_two = {two, "float32", 2, {2, 3}}, of_output = {output, "float32", 2, {2, 1}};
    sk_array transposed = {two, "float32", 2, {3, 1}, {sizeof(float), 3 * sizeof(float)}};
    sk_array wrong = {output, "float64", 1, {1}}, across = {output, "float32", 2, {2, 1}, {4, 8}};
    told("predict", sk_predict(&of_two, &of_output));
    printf("predicted %a %a\n", output[0][0], output[1][0]);
    told("predict by strides", sk_predict(&of_two, &across));
    told("predict into another shape", sk_predict(&of_two, &wrong));
    told("predict of another shape", sk_predict(&transposed, &of_output));
}

static void first_coupling(int level) {
    MPI_Comm solvers;
    int size = 0, is_training = 0;
    sk_array longer = {x, "float32", 1, {2}}, colored = {x, "color", 1, {3}};
    told("start with a wrong option", sk_start(MPI_COMM_WORLD, 1, "in_flight=2 color=red"));
    told("start", sk_start(MPI_COMM_WORLD, 1, "in_flight=2"));
    told("start again", sk_start(MPI_COMM_WORLD, 1, NULL));
    told("solvers", sk_solvers(&solvers));
    MPI_Comm_size(solvers, &size);
    printf("%d solver rank\n", size);
    told("put without fields", sk_put(0.0, 1.0));
    told("field without array", sk_field("x", NULL));
    told("field without name", sk_field(NULL, &of_x));
    told("field of a color", sk_field("x", &colored));
    told("field x", sk_field("x", &of_x));
    told("field y", sk_field("y", &of_y));
    told("put", sk_put(0.5, 2.0));
    x[0] = 10;
    told("put again", sk_put(NAN, 1.0));
    told("put without weight", sk_put(0.0, 0.0));
    sk_field("x", &longer);
    told("put of another shape", sk_put(0.0, 1.0));
    sk_field("x", &of_x);
    two_threads_put(level);
    predict();
    steered("rate", 2);
    steered("both", 2);
    steered("both", 1);
    steered("word", 2);
    steered("unknown", 2);
    told("is_training", sk_is_training(&is_training));
    printf("training %d\n", is_training);
    told("finish", sk_finish());
    told("put after finish", sk_put(0.0, 1.0));
    told("close", sk_close());
    told("close again", sk_close());
}

static void second_coupling(void) {
    int code = SK_OK;
    told("start a second one", sk_start(MPI_COMM_WORLD, 1, NULL));
    sk_field("x", &of_x);
    for (int put = 0; put < 2000000 && code == SK_OK; put++) code = sk_put(put, 1.0);
    told("put without trainer", code);
    told("close without trainer", sk_close());
}

typedef struct {
    int traps;
    MPI_Errhandler handler;
    struct sigaction of_interrupt, of_pipe;
} Host;

static Host host_now(void) {
    Host now;
    now.traps = fegetexcept();
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &now.handler);
    sigaction(SIGINT, NULL, &now.of_interrupt);
    sigaction(SIGPIPE, NULL, &now.of_pipe);
    return now;
}

static void compare(Host was, Host now) {
    printf("traps %d, locale %s, interrupt %d, pipe %d, handler %d\n", now.traps == was.traps,
           setlocale(LC_ALL, NULL), now.of_interrupt.sa_handler == was.of_interrupt.sa_handler,
           now.of_pipe.sa_handler == was.of_pipe.sa_handler, now.handler == was.handler);
}

int main(int argc, char **argv) {
    int level = atoi(argv[1]), given;
    Host host;
    if (argc != 3) return 2;
    if (!strcmp(argv[2], "python")) Py_Initialize();
    feenableexcept(FE_INVALID | FE_DIVBYZERO); /* as gfortran -ffpe-trap=invalid,zero */
    told("put before MPI", sk_put(0.0, 1.0));
    told("start before MPI", sk_start((MPI_Comm)0, 1, NULL));
    MPI_Init_thread(NULL, NULL, level, &given);
    host = host_now();
    told("put before start", sk_put(0.0, 1.0));
    told("start on no communicator", sk_start(MPI_COMM_NULL, 1, NULL));
    if (!strcmp(argv[2], "trainer")) {
        first_coupling(level);
        second_coupling();
    } else {
        told("start alone", sk_start(MPI_COMM_WORLD, 1, NULL));
    }
    compare(host, host_now());
    if (!strcmp(argv[2], "python")) {
        Py_FinalizeEx();
        told("start after Python", sk_start(MPI_COMM_WORLD, 1, NULL));
    }
    MPI_Finalize();
    told("put after MPI", sk_put(0.0, 1.0));
    return 0;
}
