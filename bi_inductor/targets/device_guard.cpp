// Torch's C++ asks the guard of a tensor's device before it indexes one. A build without CUDA has none and raises; this one does nothing.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

struct DescribedDevice final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return c10::Device(c10::DeviceType::CUDA, 0); }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, new DescribedDevice());

}  // namespace
