/* SPDX-License-Identifier: Apache-2.0
   The collectives of libaf_collectives.so for C, and for any language that can call C (Python's
   ctypes). What each call means is said in af/communicator.h; here is only what C adds.

   Every function returns AF_OK or an AF_ERROR_ code, and none lets an exception out. The text of
   the last failure of this thread is af_last_error(), one line for a person.

   Handles are opaque. A work is given back with af_work_release() (waiting for it is apart), a
   buffer with af_buffer_release(), a communicator with af_communicator_destroy(). NULL may be
   released. Types, reductions and backends are passed as the numbers of DataType, ReduceOp and
   BackendKind. */
#ifndef AF_AF_H_
#define AF_AF_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AF_API __attribute__((visibility("default")))

/* Raised when a signature or a number changes; a caller compares it with af_abi_version(). */
#define AF_ABI_VERSION 1

enum af_error {
  AF_OK = 0,
  AF_ERROR_INVALID_ARGUMENT = 1, /* this call only */
  AF_ERROR_TIMEOUT = 2,
  AF_ERROR_PEER_LOST = 3,
  AF_ERROR_MISMATCH = 4,
  AF_ERROR_ABORTED = 5,
  AF_ERROR_STORE = 6,
  AF_ERROR_SYSTEM = 7,
  AF_ERROR_INTERRUPTED = 8 /* a signal came while af_world_open or af_world_next waited */
};

enum af_type {
  AF_I8 = 0,
  AF_U8 = 1,
  AF_I32 = 2,
  AF_U32 = 3,
  AF_I64 = 4,
  AF_U64 = 5,
  AF_F16 = 6,
  AF_BF16 = 7,
  AF_F32 = 8,
  AF_F64 = 9
};
enum af_op { AF_SUM = 0, AF_AVG = 1, AF_MIN = 2, AF_MAX = 3 };
enum af_backend {
  AF_BACKEND_AUTO = 0,
  AF_BACKEND_LOCAL = 1,
  AF_BACKEND_MPI = 2,
  AF_BACKEND_NCCL = 3
};

typedef struct af_store af_store;
typedef struct af_communicator af_communicator;
typedef struct af_work af_work;
typedef struct af_buffer af_buffer;

AF_API int af_abi_version(void);
AF_API const char* af_version(void); /* "0.1.0" */

/* Of this thread's last call that failed; "" if none did. Valid until this thread's next failure.
 */
AF_API const char* af_last_error(void);
/* The ranks that it names: copies at most `capacity`, returns how many there are. */
AF_API int af_last_error_ranks(int* ranks, int capacity);

AF_API int af_store_in_process(af_store** store);
AF_API int af_store_session(const char* socket, af_store** store);
AF_API int af_store_tcp(const char* host, int port, int rank, int64_t timeout_ms, af_store** store);
/* For a library that meets through the same table. `value` is copied into `buffer` with its NUL;
   if it does not fit, the call fails with AF_ERROR_INVALID_ARGUMENT. */
AF_API int af_store_set(af_store* store, const char* key, const char* value);
AF_API int af_store_get(af_store* store, const char* key, int64_t timeout_ms, char* buffer,
                        size_t capacity);
AF_API void af_store_release(af_store* store);

/* The world that the environment describes (Communicator::from_environment). */
AF_API int af_communicator_from_environment(af_communicator** communicator);
/* The same with another name, generation, timeout (ms) or device; NULL and negative values keep
   what the environment says (device -1 is host memory, which is the default; -2 keeps). */
AF_API int af_communicator_from_environment_with(const char* name, int64_t generation,
                                                 int64_t timeout_ms, int device,
                                                 af_communicator** communicator);
/* `store` may be released afterwards; NULL is allowed in a world of one. `name` NULL: "world". */
AF_API int af_communicator_create(int rank, int world_size, uint64_t generation, int64_t timeout_ms,
                                  int backend, const char* name, int device, af_store* store,
                                  af_communicator** communicator);
AF_API void af_communicator_destroy(af_communicator* communicator);

AF_API int af_rank(const af_communicator* communicator);
AF_API int af_world_size(const af_communicator* communicator);
AF_API uint64_t af_generation(const af_communicator* communicator);
AF_API int af_backend_of(const af_communicator* communicator);
/* Valid until the communicator is destroyed. */
AF_API const char* af_description(af_communicator* communicator);

/* With `work` NULL the call blocks until the result is there, and runs on the calling thread where
   it can: the cheapest form. Otherwise *work is a handle to wait on. */
AF_API int af_all_reduce(af_communicator* communicator, const void* in, void* out, size_t count,
                         int type, int op, double pre_scale, void* stream, af_work** work);
AF_API int af_broadcast(af_communicator* communicator, const void* in, void* out, size_t count,
                        int type, int root, void* stream, af_work** work);
AF_API int af_all_gather(af_communicator* communicator, const void* in, void* out, size_t count,
                         int type, void* stream, af_work** work);
AF_API int af_reduce_scatter(af_communicator* communicator, const void* in, void* out, size_t count,
                             int type, int op, double pre_scale, void* stream, af_work** work);
AF_API int af_barrier(af_communicator* communicator, void* stream, af_work** work);

AF_API int af_group_begin(void);
AF_API int af_group_end(void);

AF_API int af_work_done(const af_work* work); /* 1 or 0 */
AF_API int af_work_wait(af_work* work, void* stream);
AF_API int af_work_synchronize(af_work* work);
AF_API uint64_t af_work_generation(const af_work* work);
AF_API void af_work_release(af_work* work);

AF_API int af_allocate(af_communicator* communicator, size_t bytes, af_buffer** buffer);
AF_API void* af_buffer_data(const af_buffer* buffer);
AF_API size_t af_buffer_bytes(const af_buffer* buffer);
AF_API void af_buffer_release(af_buffer* buffer);

/* From any thread, also while others are blocked in the communicator. `reason` may be NULL. */
AF_API int af_abort(af_communicator* communicator, const char* reason);

/* --- The world that may change (af/world.h). A process has one. */

typedef struct af_world af_world;

#define AF_FLAG_CHANGE 1
#define AF_FLAG_SAVE 2
#define AF_FLAG_LOST 4 /* the current world is lost; not to be sent to others */

/* AF_SOCKET, AF_ELASTIC, …; in an elastic run it blocks until there is a world. `client` names the
   program for the launcher's log. AF_ERROR_ABORTED: this rank is not needed, exit with code 0.
   AF_ERROR_INTERRUPTED, also of af_world_next(): a signal handler has run in this thread; do what
   it asks for (Python does at once), or call again with the same arguments to wait on. */
AF_API int af_world_open(const char* client, af_world** world);
AF_API void af_world_close(af_world* world);
AF_API int af_world_elastic(const af_world* world); /* 1 or 0 */
AF_API uint64_t af_world_generation(const af_world* world);
AF_API int af_world_rank(const af_world* world);
AF_API int af_world_ranks(const af_world* world); /* af_world_size() is of a communicator */
/* By rank; copies at most `capacity`, returns the world's size. */
AF_API int af_world_members(const af_world* world, int* was, int64_t* step, int* in_step,
                            int capacity);
/* JSON object of texts. Valid until this thread's next call. */
AF_API const char* af_world_environment(const af_world* world);
/* Formed at the first call after a change. Belongs to the world: do not destroy it; good until
   af_world_next(). */
AF_API int af_world_communicator(af_world* world, af_communicator** communicator);
/* Bits AF_FLAG_: asked for and not agreed yet. */
AF_API int af_world_flags(const af_world* world, int at_checkpoint);
/* Bits AF_FLAG_ that any rank had. */
AF_API void af_world_agree(af_world* world, int flags);
/* Bits AF_FLAG_: agreed on by all ranks (CHANGE, SAVE), or LOST. */
AF_API int af_world_agreed(const af_world* world);
/* JSON {"reason", "deadline" or null, "all"}, or "" when there is none. Valid until this thread's
   next call. */
AF_API const char* af_world_notice(const af_world* world);
/* *leave = 1: exit with code 0. */
AF_API int af_world_next(af_world* world, int64_t completed, int in_step, int* leave);
AF_API void af_world_step_done(af_world* world, int64_t step);
AF_API void af_world_finished(af_world* world);
AF_API void af_world_saved(af_world* world, const char* path, int64_t step);
/* One line to the agent: a JSON object. */
AF_API int af_world_send(af_world* world, const char* json);

#ifdef __cplusplus
}
#endif

#endif /* AF_AF_H_ */
