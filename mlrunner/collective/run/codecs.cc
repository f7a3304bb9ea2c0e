#include "mlrunner/collective/run/codecs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "mlrunner/collective/layout.h"

namespace ropewalk::collective {
namespace {

struct MinMaxHeader {
  float low, unit;
};

// Codes of up to 8 bits, one behind the other.
class BitWriter {
 public:
  explicit BitWriter(char* out) : out_(out) {}
  void Put(std::uint32_t code, std::int64_t bits) {
    held_ |= code << held_bits_;
    held_bits_ += bits;
    while (held_bits_ >= 8) {
      *out_++ = static_cast<char>(held_);
      held_ >>= 8;
      held_bits_ -= 8;
    }
  }
  void Finish() {
    if (held_bits_ > 0) *out_ = static_cast<char>(held_);
  }

 private:
  char* out_;
  std::uint32_t held_ = 0;
  std::int64_t held_bits_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const char* in) : in_(in) {}
  std::uint32_t Get(std::int64_t bits) {
    while (held_bits_ < bits) {
      held_ |= static_cast<std::uint32_t>(static_cast<unsigned char>(*in_++)) << held_bits_;
      held_bits_ += 8;
    }
    const std::uint32_t code = held_ & ((1u << bits) - 1);
    held_ >>= bits;
    held_bits_ -= bits;
    return code;
  }

 private:
  const char* in_;
  std::uint32_t held_ = 0;
  std::int64_t held_bits_ = 0;
};

std::int64_t BucketOf(const Codec& codec, std::int64_t count) { return codec.bucket_elements > 0 ? codec.bucket_elements : count; }

// In double, and bounded: between two finite ends all values are finite.
float ValueOf(const MinMaxHeader& scale, std::uint32_t code) {
  constexpr double kMax = std::numeric_limits<float>::max();
  const double value = static_cast<double>(scale.low) + static_cast<double>(code) * static_cast<double>(scale.unit);
  return static_cast<float>(value > kMax ? kMax : value);
}

MinMaxHeader MeasureMinMax(const float* in, std::int64_t count, std::int64_t bits) {
  float low = in[0], high = in[0];
  bool is_finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    low = std::min(low, in[i]);
    high = std::max(high, in[i]);
    is_finite = is_finite && std::isfinite(in[i]);
  }
  // Halves first: the difference of two finite numbers may be none.
  const auto levels = static_cast<float>((1 << bits) - 1);
  const float unit = is_finite ? 2 * (high / 2 / levels - low / 2 / levels) : std::numeric_limits<float>::quiet_NaN();
  return {low, unit};
}

}  // namespace

Codec MinMaxCodec(std::int64_t bits, std::int64_t bucket_elements) {
  return {.name = "min_max", .bits = bits, .bucket_elements = bucket_elements, .bucket_header_bytes = sizeof(MinMaxHeader)};
}

Codec SignCodec(std::int64_t bucket_elements) {
  return {.name = "sign", .bits = 1, .bucket_elements = bucket_elements, .bucket_header_bytes = sizeof(float)};
}

Status CheckCodec(const Codec& codec) {
  const bool is_min_max =
      codec.name == "min_max" && codec.bits >= 1 && codec.bits <= 8 && codec.bucket_header_bytes == sizeof(MinMaxHeader);
  const bool is_sign = codec.name == "sign" && codec.bits == 1 && codec.bucket_header_bytes == sizeof(float);
  if ((is_min_max || is_sign) && codec.bucket_elements >= 0) return {};
  return Status(Code::kInvalid, "COLL12", "codec \"" + codec.name + "\" of " + std::to_string(codec.bits) + " bits cannot be run",
                "there are min_max (1 to 8 bits) and sign (1 bit)", "make it by MinMaxCodec() or SignCodec()");
}

void Encode(const Codec& codec, const float* in, std::int64_t count, float* residual, char* out) {
  if (count == 0) return;
  const std::int64_t bucket = BucketOf(codec, count), buckets = (count + bucket - 1) / bucket;
  BitWriter codes(out + buckets * codec.bucket_header_bytes);
  for (std::int64_t b = 0; b < buckets; ++b) {
    const std::int64_t begin = b * bucket, length = std::min(bucket, count - begin);
    const float* x = in + begin;
    float* left = residual == nullptr ? nullptr : residual + begin;
    if (left != nullptr) {
      for (std::int64_t i = 0; i < length; ++i) left[i] += x[i];
      x = left;
    }
    char* header = out + b * codec.bucket_header_bytes;
    if (codec.name == "sign") {
      double sum = 0;
      for (std::int64_t i = 0; i < length; ++i) sum += std::abs(static_cast<double>(x[i]));
      auto mean = static_cast<float>(sum / static_cast<double>(length));
      if (!std::isfinite(mean)) mean = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(header, &mean, sizeof(mean));
      for (std::int64_t i = 0; i < length; ++i) {
        const bool is_negative = std::signbit(x[i]);
        codes.Put(is_negative ? 1 : 0, 1);
        if (left != nullptr) left[i] = std::isnan(mean) ? 0 : left[i] - (is_negative ? -mean : mean);
      }
      continue;
    }
    const MinMaxHeader scale = MeasureMinMax(x, length, codec.bits);
    std::memcpy(header, &scale, sizeof(scale));
    const auto top = static_cast<float>((1 << codec.bits) - 1);
    const float inverse = scale.unit > 0 ? 1 / scale.unit : 0;
    for (std::int64_t i = 0; i < length; ++i) {
      // With a NaN in the bucket the unit is one, the inverse 0 and the code does not matter, but must be one.
      const float level = (x[i] - scale.low) * inverse + 0.5f;
      const auto code = static_cast<std::uint32_t>(level >= 0 ? std::min(level, top) : 0);
      codes.Put(code, codec.bits);
      if (left != nullptr) left[i] = std::isnan(scale.unit) ? 0 : left[i] - ValueOf(scale, code);
    }
  }
  codes.Finish();
}

void Decode(const Codec& codec, const char* in, std::int64_t count, float* out) {
  if (count == 0) return;
  const std::int64_t bucket = BucketOf(codec, count), buckets = (count + bucket - 1) / bucket;
  BitReader codes(in + buckets * codec.bucket_header_bytes);
  for (std::int64_t b = 0; b < buckets; ++b) {
    const std::int64_t begin = b * bucket, length = std::min(bucket, count - begin);
    const char* header = in + b * codec.bucket_header_bytes;
    if (codec.name == "sign") {
      float mean;
      std::memcpy(&mean, header, sizeof(mean));
      for (std::int64_t i = 0; i < length; ++i) out[begin + i] = codes.Get(1) != 0 ? -mean : mean;
      continue;
    }
    MinMaxHeader scale;
    std::memcpy(&scale, header, sizeof(scale));
    for (std::int64_t i = 0; i < length; ++i) out[begin + i] = ValueOf(scale, codes.Get(codec.bits));
  }
}

}  // namespace ropewalk::collective
