// SPDX-License-Identifier: Apache-2.0
#include "train/data/hdf5_type.h"

#include <bit>
#include <cstring>

namespace af::train {
namespace {

Hdf5Type native(at::ScalarType scalar, hid_t type) {
  return {scalar, Hdf5Handle(H5Tcopy(type), H5Tclose)};
}

// h5py stores bool as an enum of int8 with the members FALSE = 0 and TRUE = 1.
bool is_bool_enum(hid_t type) {
  if (H5Tget_size(type) != 1 || H5Tget_nmembers(type) != 2) return false;
  for (unsigned i = 0; i < 2; ++i) {
    char* name = H5Tget_member_name(type, i);
    int8_t value = -1;
    const bool good = name != nullptr && H5Tget_member_value(type, i, &value) >= 0 &&
                      std::strcmp(name, value == 0 ? "FALSE" : "TRUE") == 0 && value <= 1;
    H5free_memory(name);
    if (!good) return false;
  }
  return true;
}

// Half of IEEE 754; bfloat16 has two bytes, too.
bool is_half(hid_t type) {
  size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits);
  return sign == 15 && exponent == 10 && exponent_bits == 5 && mantissa == 0 &&
         mantissa_bits == 10 && H5Tget_ebias(type) == 15;
}

std::optional<NumberKind> number_kind_of(hid_t type, size_t size) {
  using enum NumberKind;
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      if (size == 2 && is_half(type)) return f16;
      if (H5Tequal(type, H5T_IEEE_F32LE) > 0 || H5Tequal(type, H5T_IEEE_F32BE) > 0) return f32;
      if (H5Tequal(type, H5T_IEEE_F64LE) > 0 || H5Tequal(type, H5T_IEEE_F64BE) > 0) return f64;
      return std::nullopt;
    case H5T_INTEGER: {
      const bool is_signed = H5Tget_sign(type) != H5T_SGN_NONE;
      if (H5Tget_precision(type) != 8 * size) return std::nullopt;
      if (size == 1) return is_signed ? i8 : u8;
      if (size == 2) return is_signed ? i16 : u16;
      if (size == 4) return is_signed ? i32 : u32;
      if (size == 8) return is_signed ? i64 : u64;
      return std::nullopt;
    }
    case H5T_ENUM:
      if (is_bool_enum(type)) return boolean;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<NumberFormat> number_format_of(hid_t type) {
  const size_t size = H5Tget_size(type);
  const auto kind = number_kind_of(type, size);
  if (!kind) return std::nullopt;
  constexpr H5T_order_t kOwn =
      std::endian::native == std::endian::little ? H5T_ORDER_LE : H5T_ORDER_BE;
  return NumberFormat{*kind, size > 1 && H5Tget_order(type) != kOwn};
}

std::optional<Hdf5Type> tensor_type_of(hid_t type) {
  const size_t size = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      if (size == 8) return native(at::kDouble, H5T_NATIVE_DOUBLE);
      if (size == 4) return native(at::kFloat, H5T_NATIVE_FLOAT);
      if (size == 2) return native(at::kFloat, H5T_NATIVE_FLOAT);  // half: HDF5 widens it itself
      return std::nullopt;
    case H5T_INTEGER: {
      const bool is_signed = H5Tget_sign(type) != H5T_SGN_NONE;
      if (size == 1)
        return is_signed ? native(at::kChar, H5T_NATIVE_INT8) : native(at::kByte, H5T_NATIVE_UINT8);
      if (size == 2)
        return is_signed ? native(at::kShort, H5T_NATIVE_INT16)
                         : native(at::kInt, H5T_NATIVE_INT32);
      if (size == 4)
        return is_signed ? native(at::kInt, H5T_NATIVE_INT32) : native(at::kLong, H5T_NATIVE_INT64);
      if (size == 8) return native(at::kLong, H5T_NATIVE_INT64);
      return std::nullopt;
    }
    case H5T_ENUM:
      if (is_bool_enum(type)) return native(at::kBool, type);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

const char* name_of_class(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_STRING:
      return "text";
    case H5T_COMPOUND:
      return "a compound type (Hdf5Blocks reads its fields)";
    case H5T_ENUM:
      return "an enumeration";
    case H5T_FLOAT:
      return "a float of an unusual size";
    case H5T_VLEN:
      return "rows of varying length";
    case H5T_REFERENCE:
      return "references";
    default:
      return "an unsupported type";
  }
}

}  // namespace af::train
