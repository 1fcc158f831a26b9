// SPDX-License-Identifier: Apache-2.0
// A stream socket (TCP or Unix) that carries one text per line, both ways, without blocking.
//
// Lives in one io_context and is used from its thread only. The connection keeps itself alive while
// it is open; callbacks are dropped at the close, so what they hold is released then.
#pragma once

#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/streambuf.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace af {

class LineConnection : public std::enable_shared_from_this<LineConnection> {
 public:
  using Socket = asio::generic::stream_protocol::socket;
  using OnLine = std::function<void(const std::string& line)>;
  // Called once, unless close() was called before: end of stream, an error, or a line over 4 MiB.
  using OnClose = std::function<void(const std::string& reason)>;

  static std::shared_ptr<LineConnection> start(Socket socket, OnLine on_line, OnClose on_close);

  // Later lines and the close go to these instead.
  void hand_over(OnLine on_line, OnClose on_close);

  void send(const std::string& line);  // `line` without "\n"; queued; ignored when closed
  void close();                        // at once; on_close is not called
  void close_when_sent();              // after what is queued has been handed to the kernel
  bool is_open() const { return open_; }
  Socket& socket() { return socket_; }

 private:
  explicit LineConnection(Socket socket);
  void read();
  void write();
  void fail(const std::string& reason);

  Socket socket_;
  asio::streambuf input_;
  std::deque<std::string> output_;
  OnLine on_line_;
  OnClose on_close_;
  bool open_ = true;
  bool closing_ = false;
};

}  // namespace af
