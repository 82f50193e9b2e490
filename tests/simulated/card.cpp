// A CUDA device made of main memory, for a torch that was built for the CPU: nothing stands under its CUDA dispatch key,
// so kernels can be put there. Numbers, devices, types and bytes are those of a card; times and real kernels are not.
//
// - Every operation is the CPU's kernel on the same memory. Operands on two devices raise, as on a card.
// - New memory is 0xFF: what is read before it was written is NaN.
// - Memory is counted, limited, and, through a ledger file, shared with other processes; that of a dead one comes back late.
// - Copies to pinned memory that do not block arrive at the next synchronisation. What the host changes meanwhile is a race.
// - A failure can be planted that surfaces at the next synchronisation and stays, as a broken context does.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {
using at::Tensor;
using Clock = std::chrono::steady_clock;

std::atomic<int64_t> now_{0}, peak_{0}, reserved_{0}, limit_{-1}, total_{-1}, ooms_{0};
std::atomic<int64_t> syncs_{0}, blocking_{0}, pageable_{0}, launches_{0}, races_{0};
std::atomic<int> devices_{1}, strict_{0};
std::atomic<double> speed_{0};  // bytes a second of copies on the side stream
thread_local bool side_ = false;
thread_local c10::DeviceIndex current_ = 0;
std::mutex lock_;
std::unordered_map<void*, size_t> sizes_;
std::map<uintptr_t, size_t> pinned_;

// -- errors that come late

std::string failure_;
std::atomic<bool> failing_{false}, broken_{false};

void refuse_if_broken() {
  if (!broken_) return;
  std::lock_guard<std::mutex> held(lock_);
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 710, "CUDA error: " + failure_);
}

struct Download { Tensor to, value; };
struct Upload { Tensor from, value; };
std::vector<Download> downloads_;
std::vector<Upload> uploads_;

// Wait for the device: what was under way arrives, and what went wrong is told.
void synchronise(bool hidden = true) {
  syncs_++;
  TORCH_CHECK(!(hidden && strict_ == 2), "called a synchronizing CUDA operation");
  std::vector<Download> downloads;
  std::vector<Upload> uploads;
  {
    std::lock_guard<std::mutex> held(lock_);
    downloads.swap(downloads_);
    uploads.swap(uploads_);
  }
  for (auto& one : downloads) one.to.copy_(one.value);
  for (auto& one : uploads)
    if (memcmp(one.from.const_data_ptr(), one.value.const_data_ptr(), one.value.nbytes()) != 0) races_++;
  if (failing_) broken_ = true;
  refuse_if_broken();
}

// -- memory, of this process and of others on the same card

struct Entry { int64_t pid, bytes; double dead; };
constexpr int kEntries = 64;
Entry* ledger_ = nullptr;
Entry* mine_ = nullptr;
double release_s_ = 0;

double seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

bool lives(int64_t pid) {
  char name[64], state = 'Z';
  snprintf(name, sizeof name, "/proc/%ld/stat", static_cast<long>(pid));
  FILE* file = fopen(name, "r");
  if (!file) return false;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
  fclose(file);
  return state != 'Z' && state != 'X';
}

// Bytes that other processes hold, or held so lately that the driver has not got them back.
int64_t foreign() {
  if (!ledger_) return 0;
  int64_t sum = 0;
  for (int at = 0; at < kEntries; at++) {
    Entry& one = ledger_[at];
    if (!one.pid || &one == mine_) continue;
    if (!one.dead && !lives(one.pid)) one.dead = seconds();
    if (one.dead && seconds() - one.dead > release_s_) one = {0, 0, 0};
    sum += one.bytes;
  }
  return sum;
}

void count(int64_t bytes) {
  now_ += bytes;
  if (now_ > peak_) peak_ = now_.load();
  if (now_ > reserved_) reserved_ = now_.load();
  if (mine_) mine_->bytes = now_;
}

void drop(void* memory) {
  if (!memory) return;
  {
    std::lock_guard<std::mutex> held(lock_);
    count(-static_cast<int64_t>(sizes_[memory]));
    sizes_.erase(memory);
  }
  free(memory);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { return on(bytes, current_); }
  c10::DataPtr on(size_t bytes, c10::DeviceIndex index) {
    refuse_if_broken();
    auto device = c10::Device(c10::DeviceType::CUDA, index);
    if (bytes == 0) return {nullptr, nullptr, &drop, device};
    size_t rounded = (bytes + 511) / 512 * 512;
    int64_t most = limit_ >= 0 && (total_ < 0 || limit_ < total_) ? limit_.load() : total_.load();
    int64_t others = foreign();
    if (most >= 0 && now_ + others + static_cast<int64_t>(rounded) > most) {
      ooms_++;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes, " bytes. GPU ", int(index),
                       " has a total capacity of ", total_.load(), " bytes of which ", most - now_ - others, " bytes is free.");
    }
    void* memory = aligned_alloc(512, rounded);
    TORCH_CHECK(memory, "the host has no memory for the simulated card");
    memset(memory, 0xFF, rounded);
    std::lock_guard<std::mutex> held(lock_);
    sizes_[memory] = rounded;
    count(static_cast<int64_t>(rounded));
    return {memory, memory, &drop, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { memcpy(to, from, bytes); }
} allocator_;

void unpin(void* memory) {
  if (!memory) return;
  {
    std::lock_guard<std::mutex> held(lock_);
    pinned_.erase(reinterpret_cast<uintptr_t>(memory));
  }
  free(memory);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? aligned_alloc(512, (bytes + 511) / 512 * 512) : nullptr;
    std::lock_guard<std::mutex> held(lock_);
    if (memory) pinned_[reinterpret_cast<uintptr_t>(memory)] = bytes;
    return {memory, memory, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { memcpy(to, from, bytes); }
} pinned_allocator_;

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> held(lock_);
  auto place = reinterpret_cast<uintptr_t>(data);
  auto after = pinned_.upper_bound(place);
  if (after == pinned_.begin()) return false;
  --after;
  return place < after->first + after->second;
}

// -- operations

c10::DeviceIndex index_of(std::optional<at::Device> device) {
  auto index = device && device->has_index() ? device->index() : current_;
  TORCH_CHECK(index < devices_, "CUDA error: invalid device ordinal");
  return index;
}

struct On {  // allocations inside go to this device
  c10::DeviceIndex before = current_;
  explicit On(c10::DeviceIndex index) { current_ = index; }
  ~On() { current_ = before; }
};

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

Tensor empty_(c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<at::Device> device,
              std::optional<bool>, std::optional<at::MemoryFormat> format) {
  On here(index_of(device));
  return at::detail::empty_generic(size, &allocator_, kCuda, c10::dtype_or_default(type), format);
}

Tensor empty_strided_(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                      std::optional<at::Device> device, std::optional<bool>) {
  On here(index_of(device));
  return at::detail::empty_strided_generic(size, stride, &allocator_, kCuda, c10::dtype_or_default(type));
}

// The same memory under the CPU's name.
Tensor host(const Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  auto options = tensor.options().device(at::kCPU);
  if (tensor.storage().nbytes() == 0) return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), options);
  auto data = at::DataPtr(tensor.storage().mutable_data(), c10::Device(at::kCPU));
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr, false);
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

// A copy of a result on the device.
Tensor device(const Tensor& tensor, c10::DeviceIndex index) {
  if (!tensor.defined() || tensor.is_cuda()) return tensor;
  On here(index);
  Tensor made = at::detail::empty_strided_generic(tensor.sizes(), tensor.strides(), &allocator_, kCuda, tensor.scalar_type());
  host(made).copy_(tensor);
  return made;
}

void pause(const Tensor& tensor) {
  if (speed_ > 0 && side_) std::this_thread::sleep_for(std::chrono::duration<double>(tensor.nbytes() / speed_.load()));
}

// What was on its way to the card from where a copy to the host now goes has arrived: one stream has to wait for the other there.
void settle_uploads(const Tensor& to) {
  auto begin = static_cast<const char*>(to.const_data_ptr()), end = begin + to.nbytes();
  std::erase_if(uploads_, [&](const Upload& one) {
    auto from = static_cast<const char*>(one.from.const_data_ptr());
    if (from >= end || from + one.from.nbytes() <= begin) return false;
    if (memcmp(from, one.value.const_data_ptr(), one.value.nbytes()) != 0) races_++;
    return true;
  });
}

// The same the other way: what was on its way to where a copy to the card now reads has arrived.
void settle_downloads(const Tensor& from) {
  auto begin = static_cast<const char*>(from.const_data_ptr()), end = begin + from.nbytes();
  std::lock_guard<std::mutex> held(lock_);
  std::erase_if(downloads_, [&](Download& one) {
    auto to = static_cast<const char*>(one.to.const_data_ptr());
    if (to >= end || to + one.to.nbytes() <= begin) return false;
    one.to.copy_(one.value);
    return true;
  });
}

void download(const Tensor& to, const Tensor& from, bool non_blocking) {
  pause(from);
  bool pinned = is_pinned(to.const_data_ptr());
  if (!pinned) pageable_++;
  Tensor value = host(from);
  if (pinned && non_blocking) {
    Tensor kept = value.clone();
    std::lock_guard<std::mutex> held(lock_);
    settle_uploads(to);
    if (to.is_contiguous()) memset(to.mutable_data_ptr(), 0xFF, to.nbytes());
    downloads_.push_back({to, kept});
    return;
  }
  blocking_++;
  synchronise();
  to.copy_(value);
}

void upload(const Tensor& to, const Tensor& from, bool non_blocking) {
  bool pinned = is_pinned(from.const_data_ptr());
  if (!pinned) pageable_++;
  settle_downloads(from);
  host(to).copy_(from);
  if (!non_blocking) {
    blocking_++;
    synchronise();
  } else if (pinned && from.is_contiguous()) {
    Tensor kept = from.clone();
    std::lock_guard<std::mutex> held(lock_);
    uploads_.push_back({from, kept});
  }
}

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  refuse_if_broken();
  launches_++;
  if (from.numel() == 0 && self.numel() == 0) return self;
  if (!self.is_cuda())
    download(self, from, non_blocking);
  else if (!from.is_cuda())
    upload(self, from, non_blocking);
  else
    host(self).copy_(host(from));
  return self;
}

Tensor copied_into(const Tensor& self, const Tensor& to, bool non_blocking) {
  auto target = to;
  copy_(target, self, non_blocking);
  return to;
}

Tensor copied_into_resized(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) const_cast<Tensor&>(to).resize_(self.sizes());
  return copied_into(self, to, false);
}

at::Scalar _local_scalar_dense(const Tensor& self) {
  synchronise();
  return host(self).item();
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  int64_t numbers = self.storage_offset();
  int64_t product = 1;
  for (auto one : size) product *= one;
  size_t need = (numbers + product) * self.itemsize();
  if (self.storage().nbytes() < need) {
    auto data = allocator_.on(need, self.device().index());
    if (self.storage().nbytes()) memcpy(data.get(), self.storage().data(), self.storage().nbytes());
    self.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    self.storage().unsafeGetStorageImpl()->set_nbytes(need);
  }
  impl->set_sizes_contiguous(size);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  impl->set_storage_keep_dtype(std::move(storage));
  auto strides = stride.empty() ? c10::IntArrayRef(at::detail::defaultStrides(sizes)) : C10_AS_INTARRAYREF_SLOW(stride);
  impl->set_sizes_and_strides(sizes, strides, offset.expect_int());
  return self;
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sym_sizes(), source.sym_strides());
}

// Operations whose result has a size that follows from values: the host has to wait for it.
const std::set<std::string> kWaiting = {"aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
                                        "aten::unique_consecutive", "aten::unique_dim", "aten::repeat_interleave"};

bool takes_mask(const c10::IValue& value) {
  if (!value.isOptionalTensorList()) return false;
  for (const std::optional<Tensor>& one : value.toOptionalTensorList())
    if (one && one->defined() && (one->scalar_type() == at::kBool || one->scalar_type() == at::kByte)) return true;
  return false;
}

struct Operand { Tensor device, host; };

struct Call {
  std::vector<Operand> operands;
  std::optional<c10::Device> target;

  void meet(const Tensor& tensor, const std::string& name) {
    if (target && tensor.device() != *target)
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *target, " and ",
                  tensor.device(), "! (", name, ")");
    target = tensor.device();
  }
  Tensor take(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    Tensor alias = host(tensor);
    operands.push_back({tensor, alias});
    return alias;
  }
  // What a result is on the device: an operand, a view of one, or new.
  Tensor give(const Tensor& result) {
    if (!result.defined() || !result.device().is_cpu()) return result;
    for (auto& one : operands) {
      if (result.is_same(one.host)) return one.device;
      bool shared = one.device.storage().nbytes() && result.storage().data() == one.device.storage().data();
      if (shared) return at::native::as_strided_tensorimpl(one.device, result.sizes(), result.strides(), result.storage_offset());
    }
    return device(result, target->index());
  }
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_if_broken();
  launches_++;
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto first = stack->size() - count;
  const std::string name = schema.name();
  Call call;
  bool waits = kWaiting.count(name) > 0, foreign_index = false;
  for (size_t at = 0; at < count; at++) {
    const auto& value = (*stack)[first + at];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) call.meet(value.toTensor(), name);
    if (value.isTensorList())
      for (const Tensor& one : value.toTensorList())
        if (one.defined() && one.is_cuda()) call.meet(one, name);
    if (value.isOptionalTensorList())
      for (const std::optional<Tensor>& one : value.toOptionalTensorList())
        if (one && one->defined()) one->is_cuda() ? call.meet(*one, name) : void(foreign_index = true);
    if (value.isDevice() && !call.target) call.target = c10::Device(c10::DeviceType::CUDA, index_of(value.toDevice()));
    waits = waits || takes_mask(value);
  }
  if (!call.target) call.target = c10::Device(c10::DeviceType::CUDA, current_);
  if (waits || foreign_index) synchronise();
  for (size_t at = 0; at < count; at++) {
    auto& value = (*stack)[first + at];
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      if (tensor.defined() && tensor.device().is_cpu() && tensor.dim() > 0) call.meet(tensor, name);
      value = call.take(tensor);
    } else if (value.isTensorList()) {
      c10::List<Tensor> taken;
      for (const Tensor& one : value.toTensorList()) taken.push_back(call.take(one));
      value = taken;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> taken;
      for (const std::optional<Tensor>& one : value.toOptionalTensorList())
        taken.push_back(one ? std::optional<Tensor>(call.take(*one)) : std::nullopt);
      value = taken;
    } else if (value.isDevice()) {
      value = c10::Device(at::kCPU);
    }
  }
  On here(call.target->index());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (auto& one : call.operands)
    if (one.host.sizes() != one.device.sizes()) {  // an empty `out` was given its size
      one.device.resize_(one.host.sizes());
      host(one.device).copy_(one.host);
    }
  const auto results = schema.returns().size();
  for (size_t at = stack->size() - results; at < stack->size(); at++) {
    auto& value = (*stack)[at];
    if (value.isTensor()) {
      value = call.give(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> given;
      for (const Tensor& one : value.toTensorList()) given.push_back(call.give(one));
      value = given;
    }
  }
}

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  static c10::Device now() { return c10::Device(c10::DeviceType::CUDA, current_); }
  c10::Device getDevice() const override { return now(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = now();
    current_ = device.index();
    return before;
  }
  void setDevice(c10::Device device) const override { current_ = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_ = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(devices_.load()); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
}  // namespace

namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return current_; }
  DeviceIndex getCurrentDevice() const override { return current_; }
  void setCurrentDevice(DeviceIndex index) const override { current_ = index; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(devices_.load()); }
  int getNumGPUs() const override { return devices_; }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator_; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  Allocator* getCUDADeviceAllocator() const override { return &allocator_; }
  void deviceSynchronize(DeviceIndex) const override { synchronise(false); }
};
namespace {
REGISTER_CUDA_HOOKS(CUDAHooks)
}
}  // namespace at

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty_);
  library.impl("empty_strided", empty_strided_);
  library.impl("copy_", copy_);
  library.impl("_copy_from", copied_into);
  library.impl("_copy_from_and_resize", copied_into_resized);
  library.impl("_local_scalar_dense", _local_scalar_dense);
  library.impl("resize_", resize_);
  library.impl("view", [](const Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); });
  library.impl("as_strided", [](const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
    auto place = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
    return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), place);
  });
  library.impl("_reshape_alias", [](const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  });
  library.impl("unfold", at::native::unfold);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_.source_Storage_storage_offset", set_storage);
}

extern "C" {
int64_t card_now() { return now_; }
int64_t card_peak() { return peak_; }
int64_t card_reserved() { return reserved_; }
int64_t card_free() { return total_ - now_ - foreign(); }
int64_t card_ooms() { return ooms_; }
int64_t card_syncs() { return syncs_; }
int64_t card_blocking() { return blocking_; }
int64_t card_pageable() { return pageable_; }
int64_t card_launches() { return launches_; }
int64_t card_races() { return races_; }
void card_reset_peak() { peak_ = now_.load(); }
void card_empty_cache() { reserved_ = now_.load(); }
void card_total(int64_t bytes) { total_ = bytes; }
void card_limit(int64_t bytes) { limit_ = bytes; }
void card_speed(double bytes_per_s) { speed_ = bytes_per_s; }
void card_devices(int count) { devices_ = count; }
void card_strict(int mode) { strict_ = mode; }
void card_side(int inside) { side_ = inside; }
// The bytes of a storage, as UntypedStorage.resize_ has it, which torch built for the CPU refuses.
int card_resize(uint64_t place, uint64_t bytes) {
  auto* storage = reinterpret_cast<c10::StorageImpl*>(place);
  try {
    auto data = allocator_.on(bytes, storage->device().index());
    if (bytes && storage->nbytes()) memcpy(data.get(), storage->data(), std::min<size_t>(bytes, storage->nbytes()));
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(bytes);
    return 0;
  } catch (const c10::OutOfMemoryError&) {
    return 1;
  }
}
int card_current() { return current_; }
void card_set_current(int index) { current_ = static_cast<c10::DeviceIndex>(index); }
void card_pin(uint64_t place, uint64_t bytes) {
  std::lock_guard<std::mutex> held(lock_);
  pinned_[place] = bytes;
}
int card_unpin(uint64_t place) {
  std::lock_guard<std::mutex> held(lock_);
  return pinned_.erase(place) ? 0 : 713;
}
// The next synchronisation reports this, and so does every call after it.
void card_fail(const char* message) {
  std::lock_guard<std::mutex> held(lock_);
  failure_ = message;
  failing_ = true;
}
// 0, or 1 where the context is broken; waits as torch.cuda.synchronize does.
int card_synchronise(char* message, int room) {
  try {
    synchronise(false);
    return 0;
  } catch (const c10::Error& error) {
    snprintf(message, room, "%s", error.what_without_backtrace());
    return 1;
  }
}
void card_ledger(const char* file, double release_s) {
  release_s_ = release_s;
  int descriptor = open(file, O_RDWR | O_CREAT, 0600);
  if (descriptor < 0 || ftruncate(descriptor, kEntries * sizeof(Entry)) != 0) abort();
  ledger_ = static_cast<Entry*>(mmap(nullptr, kEntries * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
  close(descriptor);
  for (int at = 0; at < kEntries && !mine_; at++) {
    int64_t nobody = 0;
    if (__atomic_compare_exchange_n(&ledger_[at].pid, &nobody, static_cast<int64_t>(getpid()), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      mine_ = &ledger_[at];
  }
}
}
