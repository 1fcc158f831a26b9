// SPDX-License-Identifier: Apache-2.0
// Requests over HTTP(S), by libcurl.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

namespace af::train {

struct HttpOptions {
  std::string token;
  std::string username;
  std::string password;
  std::string ca_file;
  bool insecure_tls = false;
  std::chrono::milliseconds connect_timeout{5000};
  std::chrono::milliseconds timeout{30000};
};

struct HttpReply {
  int status = 0;     // 0: none came, see `error`
  std::string error;  // "Could not resolve host: …"
  std::string body;
  std::chrono::seconds retry_after{0};
};

// Keeps its connection. Use from one thread, but for cancel(). Follows no redirection: it would
// carry the credentials elsewhere.
class HttpClient {
 public:
  // Throws Error if libcurl cannot be used.
  explicit HttpClient(const HttpOptions& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  HttpReply get(const std::string& url);
  HttpReply post(const std::string& url, const std::string& json);
  // For what must not be done twice: libcurl itself repeats a request, a POST too, when a
  // connection that it has kept turns out to be dead. Here it gets a new one.
  HttpReply post_once(const std::string& url, const std::string& json);
  // Ends the request under way, and those to come, by `when` at the latest.
  void end_by(std::chrono::steady_clock::time_point when);

  static std::string escaped(const std::string& text);  // for a query

 private:
  struct Impl;
  HttpReply perform();
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
