// SPDX-License-Identifier: Apache-2.0
// libaf_collectives_mpi.so: the calls of MPI. See transport.h.
// The C++ bindings were deprecated in 2009, and their headers do not compile without warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <stdlib.h>

#include <climits>
#include <list>
#include <stdexcept>

#include "collectives/mpi/transport.h"

namespace af {
namespace {

constexpr int kNoticeTag = 1;

bool broken = false;

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(call) + ": " + std::string(text, length));
}

// A process that leaves with 0 must finalize, or mpirun calls it a crash. One that leaves with an
// error must not: MPI_Finalize waits for all ranks, and they may wait for this one in an operation.
void finalize_at_exit(int status, void*) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && !broken && status == 0) MPI_Finalize();
}

void initialise() {
  int initialised = 0, finalized = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalized);
  if (finalized) throw std::runtime_error("MPI_Finalize was already called in this process");
  if (initialised) return;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  ::on_exit(finalize_at_exit, nullptr);
}

MPI_Datatype mpi_type(DataType type) {
  switch (type) {
    case DataType::i8:
      return MPI_INT8_T;
    case DataType::u8:
      return MPI_UINT8_T;
    case DataType::i32:
      return MPI_INT32_T;
    case DataType::u32:
      return MPI_UINT32_T;
    case DataType::i64:
      return MPI_INT64_T;
    case DataType::u64:
      return MPI_UINT64_T;
    case DataType::f32:
      return MPI_FLOAT;
    case DataType::f64:
      return MPI_DOUBLE;
    case DataType::f16:
    case DataType::bf16:
      break;
  }
  throw std::runtime_error("MPI has no type for f16 and bf16");
}

std::size_t bytes_of(DataType type) {  // size_of() lives in the library, which may not be global
  if (type == DataType::f16 || type == DataType::bf16) return 2;
  int bytes = 0;
  check(MPI_Type_size(mpi_type(type), &bytes), "MPI_Type_size");
  return static_cast<std::size_t>(bytes);
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::avg:
      break;
  }
  throw std::runtime_error("MPI has no average");
}

int to_int(std::size_t count) {
  if (count > INT_MAX) throw std::runtime_error("a count does not fit MPI's int");
  return static_cast<int>(count);
}

class Transport final : public MpiTransport {
 public:
  Transport() {
    initialise();
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    check(MPI_Query_thread(&level_), "MPI_Query_thread");
  }

  // Freeing is not tried while something is unfinished; the few bytes stay until the process ends.
  ~Transport() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized || broken || request_ != MPI_REQUEST_NULL) return;
    free_sent();
    if (data_ != MPI_COMM_NULL) MPI_Comm_free(&data_);
    if (side_ != MPI_COMM_NULL && sent_.empty()) MPI_Comm_free(&side_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Threads threads() const override {
    if (level_ >= MPI_THREAD_MULTIPLE) return Threads::any;
    return level_ == MPI_THREAD_SERIALIZED ? Threads::serialized : Threads::one;
  }

  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    return std::string(text, length).substr(0, std::string(text, length).find(','));
  }

  void start_setup() override {
    check(MPI_Comm_idup(MPI_COMM_WORLD, &data_, &request_), "MPI_Comm_idup");
    setup_ = 1;
  }

  void start(const Operation& o) override {
    if (o.kind == OperationKind::barrier) {
      check(MPI_Ibarrier(data_, &request_), "MPI_Ibarrier");
      return;
    }
    const int count = to_int(o.count);
    const std::size_t bytes = o.count * bytes_of(o.type);
    switch (o.kind) {
      case OperationKind::all_reduce:
        check(MPI_Iallreduce(o.in == o.out ? MPI_IN_PLACE : o.in, o.out, count, mpi_type(o.type),
                             mpi_op(o.op), data_, &request_),
              "MPI_Iallreduce");
        break;
      case OperationKind::broadcast:
        check(MPI_Ibcast(o.out, to_int(bytes), MPI_BYTE, o.root, data_, &request_), "MPI_Ibcast");
        break;
      case OperationKind::all_gather: {
        const bool in_place = o.in == static_cast<const char*>(o.out) + rank_ * bytes;
        check(MPI_Iallgather(in_place ? MPI_IN_PLACE : o.in, to_int(bytes), MPI_BYTE, o.out,
                             to_int(bytes), MPI_BYTE, data_, &request_),
              "MPI_Iallgather");
        break;
      }
      case OperationKind::reduce_scatter:
        check(MPI_Ireduce_scatter_block(o.in, o.out, count, mpi_type(o.type), mpi_op(o.op), data_,
                                        &request_),
              "MPI_Ireduce_scatter_block");
        break;
      case OperationKind::barrier:
        break;
    }
  }

  bool test() override {
    int done = 0;
    check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (!done) return false;
    if (setup_ == 1) {
      // One after the other: two communicators made at once from one parent confuse some MPIs.
      MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
      check(MPI_Comm_idup(data_, &side_, &request_), "MPI_Comm_idup");
      setup_ = 2;
      return false;
    }
    if (setup_ == 2) MPI_Comm_set_errhandler(side_, MPI_ERRORS_RETURN);
    setup_ = 0;
    return true;
  }

  void send(int rank, const MpiNotice& notice) override {
    if (side_ == MPI_COMM_NULL) return;
    free_sent();
    Sent& sent = sent_.emplace_back();
    sent.notice = notice;
    // free_sent() waits for it, in a later call.
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker)
    check(MPI_Isend(&sent.notice, sizeof(MpiNotice), MPI_BYTE, rank, kNoticeTag, side_,
                    &sent.request),
          "MPI_Isend");
  }

  bool receive(MpiNotice* notice) override {
    if (side_ == MPI_COMM_NULL) return false;
    int there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, side_, &there, &status), "MPI_Iprobe");
    if (!there) return false;
    check(MPI_Recv(notice, sizeof(MpiNotice), MPI_BYTE, status.MPI_SOURCE, kNoticeTag, side_,
                   MPI_STATUS_IGNORE),
          "MPI_Recv");
    notice->sender = status.MPI_SOURCE;
    notice->text[MpiNotice::kTextBytes - 1] = '\0';
    return true;
  }

  void mark_broken() override { broken = true; }

 private:
  struct Sent {
    MpiNotice notice;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void free_sent() {
    for (auto it = sent_.begin(); it != sent_.end();) {
      int done = 0;
      MPI_Test(&it->request, &done, MPI_STATUS_IGNORE);
      it = done ? sent_.erase(it) : std::next(it);
    }
  }

  int rank_ = 0, size_ = 1, level_ = MPI_THREAD_SINGLE;
  int setup_ = 0;  // which of the two communicators is being made
  MPI_Comm data_ = MPI_COMM_NULL, side_ = MPI_COMM_NULL;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::list<Sent> sent_;  // stable addresses: MPI reads them until the request is done
};

}  // namespace
}  // namespace af

extern "C" AF_PUBLIC af::MpiTransport* af_mpi_transport_open() {
  return new af::Transport();
}
