// SPDX-License-Identifier: Apache-2.0
#include "launcher/line_connection.h"

#include <asio/buffers_iterator.hpp>
#include <asio/read_until.hpp>
#include <asio/write.hpp>

namespace af {
namespace {
// Values of the session protocol are small texts; a peer that sends more is broken.
constexpr size_t kLongestLine = 4 << 20;
}  // namespace

// The buffer has the limit itself, or a peer that never ends its line (and has not proved anything
// yet) could fill the memory.
LineConnection::LineConnection(Socket socket)
    : socket_(std::move(socket)), input_(kLongestLine + 1) {}

std::shared_ptr<LineConnection> LineConnection::start(Socket socket, OnLine on_line,
                                                      OnClose on_close) {
  std::shared_ptr<LineConnection> connection(new LineConnection(std::move(socket)));
  connection->on_line_ = std::move(on_line);
  connection->on_close_ = std::move(on_close);
  connection->read();
  return connection;
}

void LineConnection::hand_over(OnLine on_line, OnClose on_close) {
  on_line_ = std::move(on_line);
  on_close_ = std::move(on_close);
}

void LineConnection::read() {
  asio::async_read_until(
      socket_, input_, '\n',
      [self = shared_from_this()](const asio::error_code& error, size_t size) {
        if (!self->open_) return;
        if (error == asio::error::not_found) return self->fail("a line is too long");
        if (error) return self->fail(error == asio::error::eof ? "closed" : error.message());
        const auto begin = asio::buffers_begin(self->input_.data());
        const std::string line(begin, begin + static_cast<std::ptrdiff_t>(size) - 1);
        self->input_.consume(size);
        // A copy: the callback may hand the connection over, which replaces on_line_.
        const OnLine on_line = self->on_line_;
        if (on_line) on_line(line);
        if (self->open_) self->read();
      });
}

void LineConnection::send(const std::string& line) {
  if (!open_ || closing_) return;
  output_.push_back(line + "\n");
  if (output_.size() == 1) write();
}

void LineConnection::write() {
  asio::async_write(socket_, asio::buffer(output_.front()),
                    [self = shared_from_this()](const asio::error_code& error, size_t) {
                      if (!self->open_) return;
                      if (error) return self->fail(error.message());
                      self->output_.pop_front();
                      if (!self->output_.empty()) return self->write();
                      if (self->closing_) self->close();
                    });
}

void LineConnection::close() {
  if (!open_) return;
  open_ = false;
  asio::error_code ignored;
  socket_.close(ignored);
  on_line_ = nullptr;
  on_close_ = nullptr;
}

void LineConnection::close_when_sent() {
  closing_ = true;
  if (output_.empty()) close();
}

void LineConnection::fail(const std::string& reason) {
  const OnClose on_close = on_close_;
  close();
  if (on_close) on_close(reason);
}

}  // namespace af
