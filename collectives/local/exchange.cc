// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/exchange.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "collectives/executor.h"
#include "collectives/local/signature.h"

namespace af::local {
namespace {

// A thread that waits for its own operation looks at the sockets so long before it sleeps: a core
// that nobody else wants is given away at no cost, while a sleeper is late by a wake-up. The
// progress thread sleeps at once. Where the program computes on its core, one who sleeps gets the
// core back as soon as something comes, and one who yielded only after the other's slice.
constexpr std::chrono::nanoseconds kYield = std::chrono::microseconds(100);
constexpr std::size_t kVectors = 8;  // pieces per system call
// Bytes per turn of one direction of a link. Both move in turn; 256 KiB made 1 MiB take a fifth
// more.
constexpr std::size_t kAtOnce = 1024 * 1024;
// A sleeper is not woken before so much of what it waits for has come (a segment of a pipeline): it
// could not use it, and being woken costs more than copying 64 KiB does.
constexpr std::size_t kWakeBytes = 256 * 1024;

}  // namespace

Exchange::Exchange(const std::vector<Link>& links, Alarm& alarm, Waiting& waiting, Inquiry& inquiry)
    : alarm_(alarm), waiting_(waiting), inquiry_(inquiry) {
  for (const Link& link : links) {
    if (!link.same_node) lines_.push_back({link.rank, link.data.get(), {}, {}, {}});
  }
}

void Exchange::begin(const WireHeader& header) {
  sent_ = header;
  for (Line& line : lines_) {
    line.out.push_back({reinterpret_cast<char*>(&sent_), sizeof(sent_), false});
    line.in.push_back({reinterpret_cast<char*>(&line.received), sizeof(line.received), true});
  }
}

void Exchange::send(int rank, const void* data, std::size_t bytes, std::function<void()> done) {
  if (bytes == 0) return;
  char* from = static_cast<char*>(const_cast<void*>(data));
  line_of(rank).out.push_back({from, bytes, false, std::move(done)});
}

void Exchange::receive(int rank, void* data, std::size_t bytes, std::function<void()> done) {
  if (bytes == 0) return;
  line_of(rank).in.push_back({static_cast<char*>(data), bytes, false, std::move(done)});
}

Exchange::Line& Exchange::line_of(int rank) {
  const auto found = std::find_if(lines_.begin(), lines_.end(),
                                  [rank](const Line& line) { return line.rank == rank; });
  if (found == lines_.end()) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            "no connection with rank " + std::to_string(rank), {rank});
  }
  return *found;
}

void Exchange::run(Clock::time_point deadline, std::chrono::milliseconds timeout) {
  const auto patience = is_progress_thread() ? std::chrono::nanoseconds(0) : kYield;
  auto moved_at = Clock::now();
  while (true) {
    bool moved = false;
    for (Line& line : lines_) {
      if (push(line)) moved = true;
      if (pull(line)) moved = true;
    }
    // Behind all of them: what has come on one may have queued more on any.
    const bool done = std::all_of(lines_.begin(), lines_.end(), [](const Line& line) {
      return line.in.empty() && line.out.empty();
    });
    if (done) break;
    const auto now = Clock::now();
    if (moved) {
      moved_at = now;
    } else if (now - moved_at < patience) {
      sched_yield();
    } else {
      wait(deadline, timeout);
    }
  }
  set_waiting_for({});
}

void Exchange::wake_at(Line& line, std::size_t bytes) {
  if (line.wake_at == int(bytes)) return;
  line.wake_at = int(bytes);
  setsockopt(line.fd, SOL_SOCKET, SO_RCVLOWAT, &line.wake_at, sizeof(line.wake_at));
}

void Exchange::set_waiting_for(const std::vector<int>& ranks) {
  if (ranks == waiting_for_) return;
  waiting_for_ = ranks;
  waiting_.set_blocked_on(ranks.empty() ? -1 : ranks.front());
  inquiry_.set_waiting_for(ranks);
}

bool Exchange::push(Line& line) {
  if (line.out.empty()) return false;
  iovec vectors[kVectors];
  msghdr message = {};
  message.msg_iov = vectors;
  std::size_t most = kAtOnce;
  for (const Piece& piece : line.out) {
    if (message.msg_iovlen == kVectors || most == 0) break;
    const std::size_t bytes = std::min(piece.bytes, most);
    vectors[message.msg_iovlen++] = {piece.data, bytes};
    most -= bytes;
  }
  const ssize_t sent = sendmsg(line.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    lost(line);
  }
  std::size_t rest = std::size_t(sent);
  while (rest > 0) {
    Piece& piece = line.out.front();
    const std::size_t taken = std::min(rest, piece.bytes);
    piece.data += taken;
    piece.bytes -= taken;
    rest -= taken;
    if (piece.bytes > 0) break;
    const auto done = std::move(piece.done);
    line.out.pop_front();
    if (done) done();
  }
  return true;
}

bool Exchange::pull(Line& line) {
  bool moved = false;
  std::size_t most = kAtOnce;
  while (!line.in.empty() && most > 0) {
    Piece& piece = line.in.front();
    const ssize_t got = recv(line.fd, piece.data, std::min(piece.bytes, most), MSG_DONTWAIT);
    if (got == 0) lost(line);
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) return moved;
      lost(line);
    }
    moved = true;
    piece.data += got;
    piece.bytes -= std::size_t(got);
    most -= std::size_t(got);
    if (piece.bytes > 0) return moved;  // let the other links have their turn
    const Piece whole = std::move(piece);
    line.in.pop_front();
    if (whole.header) check_header(line);
    if (whole.done) whole.done();
  }
  return moved;
}

void Exchange::check_header(const Line& line) const {
  const WireHeader& other = line.received;
  if (other.magic != WireHeader::kMagic || other.generation != sent_.generation) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            "rank " + std::to_string(line.rank) + " sent what is not ours",
                            {line.rank});
  }
  if (other.signature == sent_.signature && other.count == sent_.count &&
      other.index == sent_.index) {
    return;
  }
  throw CommunicatorError(CommunicatorError::Kind::mismatch,
                          "rank " + std::to_string(line.rank) + " called " +
                              describe_call(other.signature, other.count) +
                              " while this rank called " +
                              describe_call(sent_.signature, sent_.count),
                          {line.rank});
}

void Exchange::lost(const Line& line) {
  // A rank that ends because of another one says so on its control connection, which the watcher
  // reads to its end before it calls the rank dead.
  const auto patience = Clock::now() + std::chrono::milliseconds(200);
  while (!alarm_.is_dead(line.rank) && Clock::now() < patience) {
    pollfd polled = {alarm_.event(), POLLIN, 0};
    if (poll(&polled, 1, 1) == 1) break;
  }
  alarm_.check();
  throw CommunicatorError(CommunicatorError::Kind::peer_lost,
                          "rank " + std::to_string(line.rank) + " died or left", {line.rank});
}

void Exchange::wait(Clock::time_point deadline, std::chrono::milliseconds timeout) {
  alarm_.check();
  std::vector<pollfd> polled = {{alarm_.event(), POLLIN, 0}};
  std::vector<int> missing;
  for (Line& line : lines_) {
    short events = 0;
    if (!line.out.empty()) events |= POLLOUT;
    if (!line.in.empty()) {
      events |= POLLIN;
      wake_at(line, std::min(line.in.front().bytes, kWakeBytes));
    }
    if (events == 0) continue;
    polled.push_back({line.fd, events, 0});
    missing.push_back(line.rank);
  }
  set_waiting_for(missing);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  if (left.count() <= 0) {
    const auto patience = deadline_after(timeout).patience;
    missing = inquiry_.find_culprits(missing, patience);
    alarm_.check();  // a rank that is nearer to the culprit may have reported meanwhile
    throw CommunicatorError(CommunicatorError::Kind::timeout,
                            list_ranks(missing) + " did not take part within " +
                                std::to_string(double(timeout.count()) / 1000).substr(0, 5) + " s",
                            missing);
  }
  // The alarm of this process rings the event; one of a node-mate only wakes futexes, and reaches
  // this process through its own watcher.
  poll(polled.data(), polled.size(), int(std::min<long>(left.count(), 60'000)));
}

}  // namespace af::local
