// SPDX-License-Identifier: Apache-2.0
#include "collectives/environment.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <string>

namespace af {
namespace {

using Get = std::function<const char*(const char*)>;

// Under torchrun or a plain launcher MASTER_PORT is torch's: af's store is beside it.
constexpr int kPortDistance = 1;
constexpr int kDefaultPort = 29400;

[[noreturn]] void reject(const std::string& name, const std::string& value,
                         const std::string& why) {
  throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                          name + "=" + value + ": " + why);
}

std::optional<long> number(const Get& get, const char* name) {
  const char* text = get(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  long value = 0;
  const char* end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, value);
  if (error != std::errc() || last != end || value < 0) {
    reject(name, text, "must be a whole number, 0 or more");
  }
  return value;
}

BackendKind backend_from(const Get& get) {
  const char* text = get("AF_BACKEND");
  if (text == nullptr || *text == '\0') return BackendKind::automatic;
  for (int kind = 0; kind <= int(BackendKind::nccl); ++kind) {
    if (std::strcmp(text, name_of(BackendKind(kind))) == 0) return BackendKind(kind);
  }
  // What af-launch may say of a program that asks torch.distributed itself.
  if (std::strcmp(text, "gloo") == 0) return BackendKind::local;
  reject("AF_BACKEND", text, "must be auto, local, mpi or nccl");
}

}  // namespace

BackendKind backend_under_af_launch(const Get& get) {
  const BackendKind kind = backend_from(get);
  // What af-launch chose is for the job's GPUs. A program that keeps to host memory, because its
  // libtorch has no CUDA for example, is not concerned.
  if (kind == BackendKind::nccl) return BackendKind::automatic;
  if (kind == BackendKind::mpi) {
    reject("AF_BACKEND", "mpi", "a rank under af-launch cannot use MPI: use local");
  }
  return kind;
}

Options options_from(const Get& get) {
  Options options;
  if (const auto seconds = number(get, "AF_COLLECTIVE_TIMEOUT")) {
    if (*seconds == 0) reject("AF_COLLECTIVE_TIMEOUT", "0", "must be at least 1 second");
    options.timeout = std::chrono::seconds(*seconds);
  }
  options.generation = std::uint64_t(number(get, "AF_GENERATION").value_or(0));

  const char* socket = get("AF_SOCKET");
  const bool under_af_launch = socket != nullptr && *socket != '\0';
  options.backend = under_af_launch ? backend_under_af_launch(get) : backend_from(get);
  const auto mpi_size = number(get, "OMPI_COMM_WORLD_SIZE");
  const bool by_mpi = mpi_size && !get("RANK");
  const auto rank = by_mpi ? number(get, "OMPI_COMM_WORLD_RANK") : number(get, "RANK");
  const auto size = by_mpi ? mpi_size : number(get, "WORLD_SIZE");
  if (rank.has_value() != size.has_value()) {
    throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                            "only one of RANK and WORLD_SIZE is set: set both, or neither for a "
                            "world of one");
  }
  options.rank = int(rank.value_or(0));
  options.world_size = int(size.value_or(1));
  if (options.rank >= options.world_size) {
    reject("RANK", std::to_string(options.rank),
           "is not in a world of " + std::to_string(options.world_size));
  }
  if (options.world_size == 1) return options;

  if (under_af_launch) {
    options.store = make_session_store(socket);
    return options;
  }
  if (by_mpi && options.backend == BackendKind::automatic) options.backend = BackendKind::mpi;
  if (options.backend == BackendKind::mpi) return options;
  const char* address = get("MASTER_ADDR");
  const bool one_node = by_mpi && number(get, "OMPI_COMM_WORLD_LOCAL_SIZE") == mpi_size;
  if (address == nullptr && one_node) address = "127.0.0.1";
  if (address == nullptr) {
    throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                            "a world of " + std::to_string(options.world_size) +
                                " ranks, but neither AF_SOCKET nor MASTER_ADDR says where they "
                                "meet: start the program with af-launch");
  }
  const int port = int(number(get, "MASTER_PORT").value_or(kDefaultPort)) + kPortDistance;
  options.store = make_tcp_store(address, port, options.rank, options.timeout);
  return options;
}

}  // namespace af
