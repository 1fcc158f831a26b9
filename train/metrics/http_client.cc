// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/http_client.h"

#include <curl/curl.h>

#include "common/error.h"

namespace af::train {
namespace {

constexpr std::size_t kMostBody = 16 << 20;

std::size_t take_body(char* data, std::size_t, std::size_t size, void* to) {
  auto& body = *static_cast<std::string*>(to);
  if (body.size() + size > kMostBody) return 0;
  body.append(data, size);
  return size;
}

void initialize_once() {
  // A function's static: curl_global_init() must not run in two threads. No clean-up: another
  // library of the process may use libcurl too.
  static const CURLcode result = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  if (result != CURLE_OK) throw Error::format("libcurl: {}", ::curl_easy_strerror(result));
}

}  // namespace

struct HttpClient::Impl {
  CURL* curl = nullptr;
  curl_slist* headers = nullptr;
  std::string body;
  char error[CURL_ERROR_SIZE] = "";
  std::atomic<std::chrono::steady_clock::rep> end_by{
      std::chrono::steady_clock::time_point::max().time_since_epoch().count()};

  ~Impl() {
    ::curl_slist_free_all(headers);
    ::curl_easy_cleanup(curl);
  }

  static int watch(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    return now >= static_cast<Impl*>(self)->end_by ? 1 : 0;
  }
};

HttpClient::HttpClient(const HttpOptions& options) : impl_(std::make_unique<Impl>()) {
  initialize_once();
  Impl& impl = *impl_;
  impl.curl = ::curl_easy_init();
  if (impl.curl == nullptr) throw Error("libcurl: no memory");
  impl.headers = ::curl_slist_append(nullptr, "Content-Type: application/json");
  // Without it libcurl waits a second for a 100 that MLflow's servers do not send.
  impl.headers = ::curl_slist_append(impl.headers, "Expect:");
  CURL* curl = impl.curl;
  const auto set = [curl](CURLoption option, auto value) {
    ::curl_easy_setopt(curl, option, value);
  };
  set(CURLOPT_NOSIGNAL, 1L);  // no alarm() in a process with threads
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(options.timeout.count()));
  set(CURLOPT_HTTPHEADER, impl.headers);
  set(CURLOPT_USERAGENT, "af/" AF_VERSION);
  set(CURLOPT_ERRORBUFFER, impl.error);
  set(CURLOPT_WRITEFUNCTION, &take_body);
  set(CURLOPT_WRITEDATA, &impl.body);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &Impl::watch);
  set(CURLOPT_XFERINFODATA, &impl);
  if (!options.token.empty()) {
    set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    set(CURLOPT_XOAUTH2_BEARER, options.token.c_str());
  } else if (!options.username.empty()) {
    set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    set(CURLOPT_USERNAME, options.username.c_str());
    set(CURLOPT_PASSWORD, options.password.c_str());
  }
  if (!options.ca_file.empty()) set(CURLOPT_CAINFO, options.ca_file.c_str());
  if (options.insecure_tls) {
    set(CURLOPT_SSL_VERIFYPEER, 0L);
    set(CURLOPT_SSL_VERIFYHOST, 0L);
  }
}

HttpClient::~HttpClient() = default;

void HttpClient::end_by(std::chrono::steady_clock::time_point when) {
  impl_->end_by = when.time_since_epoch().count();
}

HttpReply HttpClient::get(const std::string& url) {
  ::curl_easy_setopt(impl_->curl, CURLOPT_HTTPGET, 1L);
  ::curl_easy_setopt(impl_->curl, CURLOPT_URL, url.c_str());
  return perform();
}

HttpReply HttpClient::post(const std::string& url, const std::string& json) {
  ::curl_easy_setopt(impl_->curl, CURLOPT_POST, 1L);
  ::curl_easy_setopt(impl_->curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(json.size()));
  ::curl_easy_setopt(impl_->curl, CURLOPT_POSTFIELDS, json.data());
  ::curl_easy_setopt(impl_->curl, CURLOPT_URL, url.c_str());
  return perform();
}

HttpReply HttpClient::post_once(const std::string& url, const std::string& json) {
  ::curl_easy_setopt(impl_->curl, CURLOPT_FRESH_CONNECT, 1L);
  HttpReply reply = post(url, json);
  ::curl_easy_setopt(impl_->curl, CURLOPT_FRESH_CONNECT, 0L);
  return reply;
}

HttpReply HttpClient::perform() {
  Impl& impl = *impl_;
  impl.body.clear();
  impl.error[0] = '\0';
  const CURLcode result = ::curl_easy_perform(impl.curl);
  HttpReply reply;
  if (result == CURLE_ABORTED_BY_CALLBACK) {
    reply.error = "no answer until the end";
    return reply;
  }
  if (result != CURLE_OK) {
    reply.error = impl.error[0] != '\0' ? impl.error : ::curl_easy_strerror(result);
    return reply;
  }
  long status = 0;
  curl_off_t retry_after = 0;
  ::curl_easy_getinfo(impl.curl, CURLINFO_RESPONSE_CODE, &status);
  ::curl_easy_getinfo(impl.curl, CURLINFO_RETRY_AFTER, &retry_after);
  reply.status = static_cast<int>(status);
  reply.retry_after = std::chrono::seconds(retry_after);
  reply.body = std::move(impl.body);
  return reply;
}

std::string HttpClient::escaped(const std::string& text) {
  char* const made = ::curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size()));
  const std::string result = made != nullptr ? made : "";
  ::curl_free(made);
  return result;
}

}  // namespace af::train
