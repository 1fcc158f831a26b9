// SPDX-License-Identifier: Apache-2.0
#include "train/data/hdf5_fields.h"

#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>

#include "common/error.h"
#include "train/data/hdf5_type.h"

namespace af::train {
namespace {

// A number or an array of numbers. Nothing in `format` for what is neither.
struct Numbers {
  std::optional<NumberFormat> format;
  std::vector<int64_t> shape;
  int64_t count = 1;
};

Numbers numbers_of(hid_t type) {
  Numbers numbers;
  if (H5Tget_class(type) != H5T_ARRAY) {
    numbers.format = number_format_of(type);
    return numbers;
  }
  const int axes = H5Tget_array_ndims(type);
  std::vector<hsize_t> sizes(static_cast<size_t>(std::max(axes, 0)));
  H5Tget_array_dims2(type, sizes.data());
  const Hdf5Handle base(H5Tget_super(type), H5Tclose);
  numbers.format = number_format_of(base.get());
  numbers.shape.assign(sizes.begin(), sizes.end());
  for (const int64_t size : numbers.shape) numbers.count *= size;
  return numbers;
}

std::vector<std::string> names_of(hid_t compound) {
  std::vector<std::string> names;
  for (int i = 0; i < H5Tget_nmembers(compound); ++i) {
    char* name = H5Tget_member_name(compound, static_cast<unsigned>(i));
    names.emplace_back(name != nullptr ? name : "");
    H5free_memory(name);
  }
  return names;
}

void read_compound(Hdf5Element& element, hid_t type, std::vector<std::string> wanted,
                   const std::string& where) {
  const std::vector<std::string> names = names_of(type);
  if (wanted.empty()) wanted = names;
  element.compound = true;
  for (const std::string& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      throw Error::format("{} has no field {}: it has {}", where, name, fmt::join(names, ", "));
    const auto index = static_cast<unsigned>(found - names.begin());
    const Hdf5Handle member(H5Tget_member_type(type, index), H5Tclose);
    const Numbers numbers = numbers_of(member.get());
    if (!numbers.format)
      throw Error::format(
          "{}: field {} holds {}, which cannot become a tensor: name the fields "
          "that are to be read",
          where, name, name_of_class(member.get()));
    element.fields.push_back(
        {name, H5Tget_member_offset(type, index), *numbers.format, numbers.shape, numbers.count});
  }
}

at::ScalarType common_type(const std::vector<Hdf5Field>& fields) {
  const at::ScalarType first = tensor_type_of(fields.front().format.kind);
  bool same = true;
  bool wide = false;
  for (const Hdf5Field& field : fields) {
    same = same && tensor_type_of(field.format.kind) == first;
    wide = wide || field.format.kind == NumberKind::f64;
  }
  return same ? first : wide ? at::kDouble : at::kFloat;
}

// Makes `fields` the last axis; a single one that is not of a compound stays what it is.
Hdf5Tensor tensor_of(const std::vector<Hdf5Field>& fields, std::string name, bool add_axis) {
  Hdf5Tensor tensor;
  tensor.name = std::move(name);
  tensor.type = common_type(fields);
  const std::size_t bytes = c10::elementSize(tensor.type);
  int64_t numbers = 0;
  for (const Hdf5Field& field : fields) {
    tensor.pieces.push_back({field.offset, size_of(field.format.kind),
                             static_cast<std::size_t>(numbers) * bytes, field.count,
                             converter(field.format, tensor.type)});
    numbers += field.count;
  }
  tensor.element_bytes = static_cast<std::size_t>(numbers) * bytes;
  if (add_axis)
    tensor.element_shape = {numbers};
  else
    tensor.element_shape = fields.front().shape;
  return tensor;
}

}  // namespace

Hdf5Element element_of(hid_t type, const std::vector<std::string>& fields,
                       const std::string& where) {
  Hdf5Element element;
  element.bytes = H5Tget_size(type);
  element.memory = Hdf5Handle(H5Tcopy(type), H5Tclose);
  if (H5Tget_class(type) == H5T_COMPOUND) {
    read_compound(element, type, fields, where);
    return element;
  }
  if (!fields.empty())
    throw Error::format("{} is no compound type: it has no field {}", where, fields.front());
  Numbers numbers = numbers_of(type);
  if (!numbers.format) {  // perhaps one that HDF5 can convert
    auto converted = tensor_type_of(type);
    if (!converted)
      throw Error::format("{} holds {}, which cannot become a tensor", where, name_of_class(type));
    numbers.format = format_of(converted->scalar);
    element.bytes = c10::elementSize(converted->scalar);
    element.memory = std::move(converted->memory);
    element.in_file = false;
  }
  element.fields.push_back({"", 0, *numbers.format, numbers.shape, numbers.count});
  return element;
}

std::vector<Hdf5Tensor> tensors_of(const Hdf5Element& element, const Hdf5Column& column) {
  const std::string& name = column.name.empty() ? column.dataset : column.name;
  std::vector<Hdf5Tensor> tensors;
  if (!element.compound) {
    tensors.push_back(tensor_of(element.fields, name, false));
    const NumberFormat format = element.fields.front().format;
    tensors.front().as_in_file = format_of(tensors.front().type) == format;
  } else if (column.as == Hdf5Column::As::matrix) {
    tensors.push_back(tensor_of(element.fields, name, true));
  } else {
    for (const Hdf5Field& field : element.fields)
      tensors.push_back(tensor_of({field}, name + "." + field.name, false));
  }
  return tensors;
}

void convert_elements(const Hdf5Element& element, const Hdf5Tensor& tensor, const std::byte* from,
                      std::byte* to, std::size_t count) {
  if (tensor.as_in_file) {
    std::memcpy(to, from, count * tensor.element_bytes);
    return;
  }
  const std::size_t step = c10::elementSize(tensor.type);
  for (const Hdf5Tensor::Piece& piece : tensor.pieces) {
    if (tensor.pieces.size() == 1 &&
        element.bytes == piece.from_step * static_cast<std::size_t>(piece.count)) {
      // Nothing lies between the numbers: one long run.
      piece.convert(from, static_cast<std::ptrdiff_t>(piece.from_step), to,
                    static_cast<std::ptrdiff_t>(step),
                    count * static_cast<std::size_t>(piece.count));
      continue;
    }
    for (int64_t i = 0; i < piece.count; ++i) {
      const auto number = static_cast<std::size_t>(i);
      piece.convert(from + piece.from + number * piece.from_step,
                    static_cast<std::ptrdiff_t>(element.bytes), to + piece.to + number * step,
                    static_cast<std::ptrdiff_t>(tensor.element_bytes), count);
    }
  }
}

}  // namespace af::train
