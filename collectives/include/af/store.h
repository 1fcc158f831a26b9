// SPDX-License-Identifier: Apache-2.0
// Where ranks meet: a small table of keys and texts that all ranks of a generation see.
//
// A Communicator needs it only while it is built (addresses, tokens, NCCL's id travel through it).
// All implementations may be used by several threads and by several communicators at once.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "af/export.h"

namespace af {

class AF_PUBLIC Store {
 public:
  virtual ~Store();

  // Both throw CommunicatorError (kind store) if the store cannot be reached.
  // `value` is text: valid UTF-8 without NUL. A second set() of a key replaces the value.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is there; throws CommunicatorError (kind timeout) after `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

// For ranks that are threads of one process: give all of them the same object.
AF_PUBLIC std::shared_ptr<Store> make_in_process_store();

// For ranks under af-launch: keys live in the run's coordinator, per generation. `socket` is the
// value of AF_SOCKET ("@name" for an abstract socket). The connection is opened at the first use.
AF_PUBLIC std::shared_ptr<Store> make_session_store(const std::string& socket);

// For ranks started by mpirun, torchrun or by hand: rank 0 serves the table at host:port (it binds
// when this returns), all ranks, 0 included, connect to it and retry until `timeout`. The table
// lives as long as rank 0's object; its destructor waits, at most 5 s, for ranks that still ask.
// No secret protects this store: use it on networks you trust, as you would torch's TCPStore.
AF_PUBLIC std::shared_ptr<Store> make_tcp_store(const std::string& host, int port, int rank,
                                                std::chrono::milliseconds timeout);

}  // namespace af
