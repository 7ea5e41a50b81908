#include "pool/ranges.h"

#ifdef FASTLOAD_NVTX
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

namespace fastload {
namespace {

// The same as in fastload/nvtx/stages.py.
constexpr char kDomain[] = "fastload";
constexpr char kDecode[] = "decode", kRead[] = "read";
constexpr std::uint32_t kDecodeColour = 0xFF76B7B2, kReadColour = 0xFFA0CBE8;  // ARGB

// NVTX loads its tool from the library that this variable names; without one, ranges have no effect.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = [] {
    const char* tool = std::getenv("NVTX_INJECTION64_PATH");
    return tool != nullptr && *tool != '\0' ? nvtxDomainCreateA(kDomain) : nullptr;
  }();
  return handle;
}

}  // namespace

void DecodeRange::open(std::uint64_t number, Work work) {
  if (domain() == nullptr) return;
  static const nvtxStringHandle_t decode = nvtxDomainRegisterStringA(domain(), kDecode);
  static const nvtxStringHandle_t read = nvtxDomainRegisterStringA(domain(), kRead);
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.colorType = NVTX_COLOR_ARGB;
  attributes.color = work == Work::read ? kReadColour : kDecodeColour;
  attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  attributes.payload.ullValue = number;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = work == Work::read ? read : decode;
  nvtxDomainRangePushEx(domain(), &attributes);
}

void DecodeRange::close() {
  if (domain() != nullptr) nvtxDomainRangePop(domain());
}

}  // namespace fastload

#else

namespace fastload {

void DecodeRange::open(std::uint64_t, Work) {}
void DecodeRange::close() {}

}  // namespace fastload

#endif
