// Decoding and encoding behind onnx_tensor.h. Little-endian hosts only, like ONNX's raw data.
#include "importers/onnx_tensor.h"

#include <onnx/onnx-ml.pb.h>

#include <bit>
#include <charconv>
#include <cstring>

#include "graph/error.h"
#include "importers/wire.h"

namespace ortrain {
namespace {

static_assert(std::endian::native == std::endian::little);

// The typed field that holds a dtype's elements, and the bytes of one there (0 = varint).
struct TypedField {
  uint32_t field;
  size_t bytes;
};
TypedField typed_field(DType d) {
  switch (d) {
    case DType::kF32: return {4, 4};
    case DType::kF64: return {10, 8};
    case DType::kI64: return {7, 0};
    case DType::kU64:
    case DType::kU32: return {11, 0};
    default: return {5, 0};
  }
}

std::string dims_text(const Dims& dims) {
  std::string s = "[";
  for (size_t i = 0; i < dims.size(); ++i) s += (i ? "," : "") + std::to_string(dims[i]);
  return s + "]";
}

// Bytes that n elements take in a file; 4- and 2-bit ones are packed, the first in the low bits.
size_t file_bytes(DType dtype, int64_t n) {
  const auto per_byte = static_cast<size_t>(8 / file_bits(dtype));
  return per_byte == 1 ? static_cast<size_t>(n) * size_of(dtype)
                       : (static_cast<size_t>(n) + per_byte - 1) / per_byte;
}

// Element i of packed bytes, in the form of dtype.h.
uint8_t unpacked(DType dtype, const std::byte* bytes, int64_t i) {
  const int bits = file_bits(dtype), per_byte = 8 / bits;
  const auto byte = std::to_integer<unsigned>(bytes[i / per_byte]);
  const unsigned code = byte >> (i % per_byte * bits) & ((1u << bits) - 1);
  if (dtype == DType::kF4E2M1) return static_cast<uint8_t>(code);
  return double_to_storage(dtype, storage_to_double(dtype, static_cast<uint8_t>(code)));
}

// Copies below this are too small to be given back by the page.
constexpr size_t kOwnPages = size_t{64} << 10;

// A copy of `bytes`, or a view of them when they are aligned for the type.
HostTensor from_bytes(DType dtype, const Dims& dims, std::span<const std::byte> bytes,
                      const FileBytes& file, Copies& copies) {
  if (file_bits(dtype) < 8) {
    HostTensor t(dtype, dims);
    auto* to = static_cast<uint8_t*>(t.mutable_raw());
    for (int64_t i = 0; i < t.count(); ++i) to[i] = unpacked(dtype, bytes.data(), i);
    return t;
  }
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % size_of(dtype) == 0;
  if (dtype != DType::kBool && aligned && !bytes.empty())
    return HostTensor::view(dtype, dims, bytes.data());
  // Integers are structure (shapes, axes): they may be asked for at any time.
  if (is_float(dtype) && file.mapping && bytes.size() >= kOwnPages)
    return HostTensor::view(dtype, dims, copies.add(bytes, *file.mapping));
  HostTensor t(dtype, dims);
  if (bytes.empty()) return t;
  if (dtype == DType::kBool) {  // anything but 0 is true
    bool* to = t.mutable_data<bool>();
    for (size_t i = 0; i < bytes.size(); ++i) to[i] = bytes[i] != std::byte{0};
    return t;
  }
  std::memcpy(t.mutable_raw(), bytes.data(), bytes.size());
  if (file.mapping) {
    const auto begin = static_cast<size_t>(bytes.data() - file.bytes.data());
    file.mapping->drop(begin, begin + bytes.size());
  }
  return t;
}

void put_varint_element(DType d, void* out, int64_t i, uint64_t v) {
  switch (size_of(d)) {
    case 8: static_cast<uint64_t*>(out)[i] = v; break;
    case 4: static_cast<uint32_t*>(out)[i] = static_cast<uint32_t>(v); break;
    case 2: static_cast<uint16_t*>(out)[i] = static_cast<uint16_t>(v); break;
    default:
      static_cast<uint8_t*>(out)[i] =
          static_cast<uint8_t>(d == DType::kBool ? static_cast<uint32_t>(v) != 0 : v);
  }
}

// Elements from the typed field of the dtype, in all its chunks. A packed type has one byte of
// elements per entry: they are read as bytes and then unpacked.
HostTensor from_typed(DType dtype, const Dims& dims, int64_t count, const TensorSite& site,
                      const FileBytes& file, Copies& copies, const std::string& label) {
  if (file_bits(dtype) < 8) {
    const auto entries = static_cast<int64_t>(file_bytes(dtype, count));
    const HostTensor bytes = from_typed(DType::kU8, {entries}, entries, site, file, copies, label);
    return from_bytes(dtype, dims, {static_cast<const std::byte*>(bytes.raw()), bytes.bytes()},
                      file, copies);
  }
  const TypedField typed = typed_field(dtype);
  uint64_t room = 0;  // no more elements than this can be there
  for (const DataChunk& c : site.data)
    if (c.field == typed.field) room += (c.end - c.begin) / (typed.bytes ? typed.bytes : 1);
  if (static_cast<uint64_t>(count) > room)
    fail(ErrorCode::kModel, label, ": expected ", count, " elements for shape ", dims_text(dims),
         ", got data for at most ", room);
  HostTensor t(dtype, dims);
  int64_t n = 0;
  const auto add = [&](const wire::Field* f, wire::Reader* packed, size_t at) {
    if (n >= count) fail(ErrorCode::kModel, label, ": more data than its ", count, " elements");
    if (typed.bytes)
      std::memcpy(static_cast<std::byte*>(t.mutable_raw()) + static_cast<size_t>(n) * typed.bytes,
                  file.bytes.data() + at, typed.bytes);
    else
      put_varint_element(dtype, t.mutable_raw(), n, packed ? packed->varint() : f->value);
    ++n;
  };
  for (const DataChunk& c : site.data) {
    if (c.field != typed.field) continue;
    wire::Reader reader(file.bytes.data(), c.begin, c.end);
    if (c.packed && typed.bytes) {
      if ((c.end - c.begin) % typed.bytes)
        fail(ErrorCode::kModel, label, ": its data has ", c.end - c.begin,
             " bytes, not a multiple of ", typed.bytes);
      for (size_t at = c.begin; at < c.end; at += typed.bytes) add(nullptr, nullptr, at);
    } else if (c.packed) {
      while (!reader.done()) add(nullptr, &reader, 0);
    } else {
      const wire::Type type = typed.bytes == 4   ? wire::kFixed32
                              : typed.bytes == 8 ? wire::kFixed64
                                                 : wire::kVarint;
      for (wire::Field f; reader.next(f);) {
        if (f.type != type) fail(ErrorCode::kModel, label, ": malformed data field ", f.number);
        add(&f, nullptr, f.payload);
      }
    }
  }
  if (n != count)
    fail(ErrorCode::kModel, label, ": expected ", count, " elements for shape ", dims_text(dims),
         ", got ", n);
  return t;
}

size_t parse_size(const std::string& text, const std::string& label, const char* key) {
  size_t v = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), v);
  if (r.ec != std::errc() || r.ptr != text.data() + text.size())
    fail(ErrorCode::kModel, label, ": external data '", key, "' is '", text, "', not a number");
  return v;
}

struct Header {
  DType dtype;
  Dims dims;
  int64_t count;
  size_t bytes;
};

Header read_header(const onnx::TensorProto& t) {
  const std::string label = tensor_label(t);
  Header h{.dtype = dtype_from_onnx(t.data_type()), .dims = {t.dims().begin(), t.dims().end()}};
  if (h.dtype == DType::kUndefined)
    fail(ErrorCode::kUnsupported, label, ": element type ", onnx_dtype_name(t.data_type()),
         " is not supported");
  if (t.has_segment()) fail(ErrorCode::kUnsupported, label, ": segmented tensors");
  for (int64_t d : h.dims)
    if (d < 0) fail(ErrorCode::kModel, label, ": negative extent in shape ", dims_text(h.dims));
  try {
    h.count = element_count(h.dims);
  } catch (const Error& e) {
    fail(ErrorCode::kModel, label, ": shape ", dims_text(h.dims), ": ", e.what());
  }
  if (static_cast<uint64_t>(h.count) > (uint64_t{1} << 60))
    fail(ErrorCode::kModel, label, ": shape ", dims_text(h.dims), " is too large");
  h.bytes = file_bytes(h.dtype, h.count);
  return h;
}

}  // namespace

// By number (TensorProto.DataType): an older onnx.proto does not know the last ones by name.
constexpr DType kByNumber[] = {DType::kUndefined,
                               DType::kF32,
                               DType::kU8,
                               DType::kI8,
                               DType::kU16,
                               DType::kI16,
                               DType::kI32,
                               DType::kI64,
                               DType::kUndefined /* string */,
                               DType::kBool,
                               DType::kF16,
                               DType::kF64,
                               DType::kU32,
                               DType::kU64,
                               DType::kUndefined,
                               DType::kUndefined /* complex */,
                               DType::kBF16,
                               DType::kF8E4M3FN,
                               DType::kF8E4M3FNUZ,
                               DType::kF8E5M2,
                               DType::kF8E5M2FNUZ,
                               DType::kU4,
                               DType::kI4,
                               DType::kF4E2M1,
                               DType::kF8E8M0,
                               DType::kU2,
                               DType::kI2};

DType dtype_from_onnx(int data_type) {
  return data_type >= 0 && data_type < static_cast<int>(std::size(kByNumber)) ? kByNumber[data_type]
                                                                              : DType::kUndefined;
}

int dtype_to_onnx(DType dtype) {
  for (int t = 1; t < static_cast<int>(std::size(kByNumber)); ++t)
    if (kByNumber[t] == dtype) return t;
  return onnx::TensorProto::UNDEFINED;
}

std::string onnx_dtype_name(int data_type) {
  return onnx::TensorProto::DataType_IsValid(data_type)
             ? onnx::TensorProto::DataType_Name(static_cast<onnx::TensorProto::DataType>(data_type))
             : cat("number ", data_type);
}

std::string tensor_label(const onnx::TensorProto& t) {
  return t.name().empty() ? "a tensor without a name" : "tensor '" + t.name() + "'";
}

const MappedFile& DataFiles::open(const std::string& location, const std::string& what) {
  const auto it = files_.find(location);
  if (it != files_.end()) return it->second;
  return files_.emplace(location, MappedFile(confined_path(folder_, location, what))).first->second;
}

const MappedFile* DataFiles::find(const std::string& location) const {
  const auto it = files_.find(location);
  return it == files_.end() ? nullptr : &it->second;
}

std::optional<ExternalData> external_data(const onnx::TensorProto& t, DataFiles& files) {
  if (t.data_location() != onnx::TensorProto::EXTERNAL) return std::nullopt;
  const std::string label = tensor_label(t);
  const Header h = read_header(t);
  ExternalData out{.bytes = h.bytes};
  std::optional<size_t> length;
  for (const auto& e : t.external_data()) {
    if (e.key() == "location") out.location = e.value();
    if (e.key() == "offset") out.offset = parse_size(e.value(), label, "offset");
    if (e.key() == "length") length = parse_size(e.value(), label, "length");
  }
  if (length && *length != h.bytes)
    fail(ErrorCode::kModel, label, ": external data has length ", *length, ", shape ",
         dims_text(h.dims), " of ", name_of(h.dtype), " needs ", h.bytes);
  const size_t size = files.open(out.location, label).bytes().size();
  if (out.offset > size || h.bytes > size - out.offset)
    fail(ErrorCode::kModel, label, ": external data at ", out.offset, " + ", h.bytes,
         " bytes lies beyond the end of '", out.location, "' (", size, " bytes)");
  return out;
}

HostTensor read_tensor(const onnx::TensorProto& t, const TensorSite& site, const FileBytes& file,
                       DataFiles& files) {
  const std::string label = tensor_label(t);
  const Header h = read_header(t);
  if (const auto e = external_data(t, files)) {
    const MappedFile& m = files.open(e->location, label);
    return from_bytes(h.dtype, h.dims, m.bytes().subspan(e->offset, e->bytes), {m.bytes(), &m},
                      files.copies());
  }
  for (const DataChunk& c : site.data) {
    if (c.field != 9) continue;
    if (!c.packed || c.end - c.begin != h.bytes)
      fail(ErrorCode::kModel, label, ": raw data has ", c.end - c.begin, " bytes, shape ",
           dims_text(h.dims), " of ", name_of(h.dtype), " needs ", h.bytes);
    return from_bytes(h.dtype, h.dims, file.bytes.subspan(c.begin, h.bytes), file, files.copies());
  }
  return from_typed(h.dtype, h.dims, h.count, site, file, files.copies(), label);
}

HostTensor read_tensor_bytes(std::span<const std::byte> bytes, const std::string& folder) {
  const FileIndex index = index_file(bytes, RootKind::kTensor, 16);
  onnx::TensorProto header;
  if (!header.ParseFromString(index.skeleton)) fail(ErrorCode::kModel, "not a TensorProto");
  DataFiles files(folder);
  return read_tensor(header, index.tensors.at(0), {bytes, nullptr}, files).clone();
}

HostTensor read_tensor_file(const std::string& path) {
  const MappedFile mapping(path);
  try {
    return read_tensor_bytes(mapping.bytes(), folder_of(path));
  } catch (const Error& e) {
    throw e.within(path);
  }
}

std::string write_tensor(const std::string& name, const HostTensor& tensor) {
  std::string out;
  for (int64_t d : tensor.dims()) {
    wire::put_tag(out, 1, wire::kVarint);
    wire::put_varint(out, static_cast<uint64_t>(d));
  }
  wire::put_tag(out, 2, wire::kVarint);
  wire::put_varint(out, static_cast<uint64_t>(dtype_to_onnx(tensor.dtype())));
  wire::put_bytes(out, 8, name);
  wire::put_tag(out, 9, wire::kBytes);
  wire::put_varint(out, file_bytes(tensor.dtype(), tensor.count()));
  append_elements(tensor, tensor.dtype(), 0, tensor.count(), out);
  return out;
}

void append_elements(const HostTensor& t, DType to, int64_t begin, int64_t count,
                     std::string& out) {
  const size_t size = size_of(t.dtype());
  const auto* from = static_cast<const char*>(t.raw()) + static_cast<size_t>(begin) * size;
  if (count == 0) return;
  if (file_bits(to) < 8) {  // whole tensors only: a piece could begin inside of a byte
    ORTRAIN_CHECK(t.dtype() == to && begin == 0 && count == t.count(), "packed data in pieces");
    const int bits = file_bits(to), per_byte = 8 / bits;
    std::string packed(file_bytes(to, count), '\0');
    for (int64_t i = 0; i < count; ++i) {
      const unsigned code = static_cast<unsigned char>(from[i]) & ((1u << bits) - 1);
      packed[static_cast<size_t>(i / per_byte)] |= static_cast<char>(code << (i % per_byte * bits));
    }
    out += packed;
    return;
  }
  if (t.dtype() == to) {
    out.append(from, static_cast<size_t>(count) * size);
    return;
  }
  const HostTensor part = HostTensor::view(t.dtype(), {count}, from).cast(to);
  out.append(static_cast<const char*>(part.raw()), part.bytes());
}

}  // namespace ortrain
