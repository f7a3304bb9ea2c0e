// Element types: one vocabulary for graphs, kernels, collectives and checkpoints.
//
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ropewalk::mlrunner {

// kToken is the type of an effect token: it orders reads and writes of a state or the ops of a channel, and holds no bytes.
// kHandle is what the start half of a split op gives to its done half; it holds no bytes of its own either.
enum class Dtype : std::uint8_t { kF32, kF64, kF16, kBF16, kI32, kI64, kU8, kBool, kToken, kHandle };

// Bytes of one element; 0 for tokens and handles.
constexpr std::size_t SizeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBF16:
      return 2;
    case Dtype::kU8:
    case Dtype::kBool:
      return 1;
    case Dtype::kToken:
    case Dtype::kHandle:
      return 0;
  }
  return 0;
}

constexpr bool IsHalf(Dtype d) { return d == Dtype::kF16 || d == Dtype::kBF16; }
constexpr bool IsFloat(Dtype d) { return d == Dtype::kF32 || d == Dtype::kF64 || IsHalf(d); }
// Of labels and of rows of a table.
constexpr bool IsIndexType(Dtype d) { return d == Dtype::kI32 || d == Dtype::kI64; }
// What can be added up: numbers, not flags or tokens.
constexpr bool IsNumber(Dtype d) { return IsFloat(d) || IsIndexType(d) || d == Dtype::kU8; }

constexpr std::string_view Name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "f32";
    case Dtype::kF64:
      return "f64";
    case Dtype::kF16:
      return "f16";
    case Dtype::kBF16:
      return "bf16";
    case Dtype::kI32:
      return "i32";
    case Dtype::kI64:
      return "i64";
    case Dtype::kU8:
      return "u8";
    case Dtype::kBool:
      return "bool";
    case Dtype::kToken:
      return "token";
    case Dtype::kHandle:
      return "handle";
  }
  return "?";
}

}  // namespace ropewalk::mlrunner
