// SPDX-License-Identifier: Apache-2.0
// Owners of HDF5's ids, the lock around its calls, and its error stack as one sentence.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace af::train {

// Closes an id with the function of its kind: Hdf5Handle file(H5Fopen(…), H5Fclose).
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

// Around every use of HDF5, closing of ids included. While it lives, HDF5 is this thread's (not all
// builds of it lock by themselves, conda's does not), and does not print its error stack on stderr;
// the stack stays readable.
class QuietHdf5 {
 public:
  QuietHdf5() : lock_(mutex()) {
    H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietHdf5() { H5Eset_auto2(H5E_DEFAULT, print_, data_); }
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;

 private:
  static std::recursive_mutex& mutex();
  std::unique_lock<std::recursive_mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

// What the innermost function of HDF5's error stack says: "unable to open file: … errno = 2".
std::string hdf5_reason();

}  // namespace af::train
