// The adapter by which TensorFlow runs on a PJRT plugin: a NextPluggableDevice over the plugin's table.
//
// It is compiled against the installed TensorFlow, because it calls two of its C++ functions. The file beside the
// library, with the library's own path and ".conf" behind it, names the device and the plugin. TensorFlow calls
// TFNPD_InitPlugin, then GetPjrtApi, then TF_InitKernel, when it loads the library.

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"
#include "tensorflow/core/common_runtime/next_pluggable_device/c/plugin_c_api.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/public/version.h"

#define EXPORTED __attribute__((visibility("default")))

// XLA's and TensorFlow's functions that make a client and keep it. Their headers need MLIR's, which no wheel has.
namespace xla {
class PjRtClient {
 public:
  virtual ~PjRtClient();
};
class KeyValueStoreInterface;
using PjRtValueType = std::variant<std::string, bool, int64_t, std::vector<int64_t>, float>;
absl::StatusOr<std::unique_ptr<PjRtClient>> GetCApiClient(
    std::string_view device_type, const absl::flat_hash_map<std::string, PjRtValueType>& options,
    std::shared_ptr<KeyValueStoreInterface> store);
}  // namespace xla
namespace tensorflow {
absl::Status SetPjRtClientInTFGlobalResourceManager(const DeviceType& type, std::unique_ptr<xla::PjRtClient> client);
}  // namespace tensorflow

namespace {

// An option of the client. The type is the first letter of s(tring), i(nteger), b(oolean), f(loat), l(ist of integers).
struct Option {
  char type;
  std::string name, text;
  std::vector<int64_t> numbers;
  float real = 0;
};

struct Configuration {
  std::string device_type, plugin, platform = "XLA_CPU_JIT", problem;
  bool says_problems = false;
  std::vector<Option> options;
};

std::string OwnPath() {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(&OwnPath), &info) && info.dli_fname ? info.dli_fname : "";
}

// Returns what the file beside this library says: lines of a key, a tab and a value.
Configuration Read() {
  Configuration found;
  const std::string own = OwnPath(), path = own + ".conf";
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t tab = line.find('\t');
    if (tab == std::string::npos) continue;
    const std::string key = line.substr(0, tab), value = line.substr(tab + 1);
    if (key == "device") {
      found.device_type = value;
    } else if (key == "plugin") {  // a relative path begins in the folder of this library
      found.plugin = value.rfind('/', 0) == 0 ? value : own.substr(0, own.rfind('/') + 1) + value;
    } else if (key == "platform") {
      found.platform = value;
    } else if (key == "problems") {
      found.says_problems = value == "printed";
    } else if (key.rfind("option ", 0) == 0 && key.size() > 9) {
      Option option{key[7], key.substr(9), value, {}, std::strtof(value.c_str(), nullptr)};
      std::istringstream numbers(value);
      for (std::string number; std::getline(numbers, number, ',');)
        option.numbers.push_back(std::strtoll(number.c_str(), nullptr, 10));
      found.options.push_back(option);
    }
  }
  if (std::strcmp(TF_Version(), TENSORFLOW_VERSION) != 0)
    found.problem = own + " was compiled for TensorFlow " TENSORFLOW_VERSION ", and this is TensorFlow " +
                    TF_Version() + "; write it with this one, or install the device's package for this one";
  if (found.device_type.empty()) found.device_type = "PJRT";
  if (found.plugin.empty())
    found.problem = "expected the device and the plugin in " + path + ", found no plugin there";
  return found;
}

const Configuration& configuration() {
  static const Configuration* const found = new Configuration(Read());
  return *found;
}

const PJRT_Api* plugin_api = nullptr;
PJRT_Client* client = nullptr;
std::string problem;  // why TensorFlow has no device; it must not end with an import of TensorFlow

// Tells a library of an exported device the Python of this process, if there is one: one from a wheel names none itself.
void NamePython(void* library) {
  const auto name = reinterpret_cast<void (*)(const char*)>(dlsym(library, "pjrt_native_python"));
  const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const auto get = reinterpret_cast<void* (*)(const char*)>(dlsym(RTLD_DEFAULT, "PySys_GetObject"));
  const auto text = reinterpret_cast<const char* (*)(void*)>(dlsym(RTLD_DEFAULT, "PyUnicode_AsUTF8"));
  const auto clear = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "PyErr_Clear"));
  if (name == nullptr || ensure == nullptr || release == nullptr || get == nullptr || text == nullptr ||
      clear == nullptr)
    return;
  const int state = ensure();
  void* const executable = get("executable");  // null or None where Python is inside of another program
  const char* const path = executable == nullptr ? nullptr : text(executable);
  if (path != nullptr && *path != 0) name(path);
  clear();
  release(state);
}

// Loads the plugin, and returns why it cannot; nothing if it is there.
std::string LoadPlugin() {
  const Configuration& found = configuration();
  if (!found.problem.empty() || plugin_api != nullptr) return found.problem;
  void* const library = dlopen(found.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::string("the plugin cannot be loaded: ") + dlerror();
  const auto get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  plugin_api = get == nullptr ? nullptr : get();
  NamePython(library);
  return plugin_api == nullptr ? found.plugin + " has no GetPjrtApi, or it gives nothing: it is no PJRT plugin" : "";
}

// Makes the plugin's client with the options of the file: TensorFlow itself gives none.
PJRT_Error* CreateClient(PJRT_Client_Create_Args* args) {
  std::vector<PJRT_NamedValue> all(args->create_options, args->create_options + args->num_options);
  for (const Option& option : configuration().options) {
    PJRT_NamedValue value{};
    value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    value.name = option.name.c_str();
    value.name_size = option.name.size();
    value.value_size = 1;
    switch (option.type) {
      case 'i':
        value.type = PJRT_NamedValue_kInt64;
        value.int64_value = option.numbers.at(0);
        break;
      case 'b':
        value.type = PJRT_NamedValue_kBool;
        value.bool_value = option.numbers.at(0) != 0;
        break;
      case 'f':
        value.type = PJRT_NamedValue_kFloat;
        value.float_value = option.real;
        break;
      case 'l':
        value.type = PJRT_NamedValue_kInt64List;
        value.int64_array_value = option.numbers.data();
        value.value_size = option.numbers.size();
        break;
      default:
        value.type = PJRT_NamedValue_kString;
        value.string_value = option.text.c_str();
        value.value_size = option.text.size();
    }
    all.push_back(value);
  }
  args->create_options = all.data();
  args->num_options = all.size();
  PJRT_Error* const error = plugin_api->PJRT_Client_Create(args);
  if (error == nullptr) client = args->client;
  return error;
}

void Have(const std::string& found) {
  problem = found;
  if (!problem.empty() && configuration().says_problems)
    std::fprintf(stderr, "pjrt: TensorFlow has no device %s: %s\n", configuration().device_type.c_str(),
                 problem.c_str());
}

PJRT_Error* Nothing(PJRT_Plugin_Initialize_Args*) { return nullptr; }

// Makes the client unless it is there. Without one TensorFlow has no device of the type, and works on its others.
void MakeClient(TF_Status* status) {
  TF_SetStatus(status, TF_OK, "");
  if (client != nullptr || !problem.empty()) return;
  const std::string& type = configuration().device_type;
  auto made = xla::GetCApiClient(type, {}, nullptr);
  absl::Status reason = made.status();
  if (made.ok())
    reason = tensorflow::SetPjRtClientInTFGlobalResourceManager(tensorflow::DeviceType(type), *std::move(made));
  if (reason.ok()) return;
  client = nullptr;
  Have("the client of the device " + type + " cannot be made: " + std::string(reason.message()));
}

// Sets the devices of the client; null where the plugin does not say them.
PJRT_Device* const* Devices(size_t* count) {
  PJRT_Client_AddressableDevices_Args args{};
  args.struct_size = PJRT_Client_AddressableDevices_Args_STRUCT_SIZE;
  args.client = client;
  if (client == nullptr || plugin_api->PJRT_Client_AddressableDevices(&args) != nullptr) return nullptr;
  *count = args.num_addressable_devices;
  return args.addressable_devices;
}

// TensorFlow asks for the count when it lists the devices, which is before it needs the client.
int32_t DeviceCount(TF_Status* status) {
  size_t count = 0;
  MakeClient(status);
  Devices(&count);
  return static_cast<int32_t>(count);
}

void SameShape(XLA_Shape* shape, int, bool, XLA_LayoutPreference, XLA_Shape* on_device, TF_Status* status) {
  std::memcpy(on_device, shape, sizeof *on_device);
  TF_SetStatus(status, TF_OK, "");
}

// An operation whose result has a size that its values decide. XLA would give a shape with a bound, which an array of
// an exported device cannot have: TensorFlow's own kernel for CPUs computes it, in memory of the host.
class OnHost : public tensorflow::OpKernel {
 public:
  explicit OnHost(tensorflow::OpKernelConstruction* construction) : OpKernel(construction) {
    std::shared_ptr<const tensorflow::NodeProperties> properties;
    OP_REQUIRES_OK(construction, tensorflow::NodeProperties::CreateFromNodeDef(
                                     construction->def(), tensorflow::OpRegistry::Global(), &properties));
    absl::Status made;
    kernel_ = tensorflow::CreateOpKernel(tensorflow::DeviceType("CPU"), construction->device(),
                                         tensorflow::cpu_allocator(), properties, TF_GRAPH_DEF_VERSION, &made);
    OP_REQUIRES_OK(construction, made);
  }
  void Compute(tensorflow::OpKernelContext* context) override { kernel_->Compute(context); }

 private:
  std::unique_ptr<tensorflow::OpKernel> kernel_;
};

tensorflow::OpKernel* MakeOnHost(tensorflow::OpKernelConstruction* construction) { return new OnHost(construction); }

// What XLA has inside of programs alone: lists of tensors, and collectives. Each device would compile its collective by
// itself, and wait for the other devices to run that one.
class Refused : public tensorflow::OpKernel {
 public:
  explicit Refused(tensorflow::OpKernelConstruction* construction) : OpKernel(construction) {}
  void Compute(tensorflow::OpKernelContext* context) override {
    const bool is_list = type_string().find("TensorList") != std::string::npos;
    context->SetStatus(absl::UnimplementedError(
        type_string() + " is not for devices of PJRT plugins outside of compiled functions: " +
        (is_list ? "compile the function that has it (jit_compile=True), or call it under tf.device('CPU:0')"
                 : "give tf.distribute.MirroredStrategy cross_device_ops=tf.distribute.ReductionToOneDevice()")));
  }
};

tensorflow::OpKernel* MakeRefused(tensorflow::OpKernelConstruction* construction) { return new Refused(construction); }

// Gives an operation a kernel that is taken before that of XLA, with all arguments and results in memory of the host.
void Register(const char* name, tensorflow::OpKernel* (*make)(tensorflow::OpKernelConstruction*)) {
  const tensorflow::OpRegistrationData* found = nullptr;
  if (!tensorflow::OpRegistry::Global()->LookUp(name, &found).ok()) return;
  tensorflow::KernelDefBuilder builder(name);
  builder.Device(configuration().device_type.c_str()).Priority(1);
  for (const auto& argument : found->op_def.input_arg()) builder.HostMemory(argument.name().c_str());
  for (const auto& argument : found->op_def.output_arg()) builder.HostMemory(argument.name().c_str());
  new tensorflow::kernel_factory::OpKernelRegistrar(builder.Build(), "PjrtOnHost", make);
}

void RegisterOnHost() {
  for (const char* const name : {"Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2",
                                 "DynamicPartition"})
    Register(name, MakeOnHost);
  for (const char* const name : {"EmptyTensorList", "TensorListConcat", "TensorListConcatLists", "TensorListConcatV2",
                                 "TensorListElementShape", "TensorListFromTensor", "TensorListGather",
                                 "TensorListGetItem", "TensorListLength", "TensorListPopBack", "TensorListPushBack",
                                 "TensorListPushBackBatch", "TensorListReserve", "TensorListResize",
                                 "TensorListScatter", "TensorListScatterIntoExistingList", "TensorListScatterV2",
                                 "TensorListSetItem", "TensorListSplit", "TensorListStack"})
    Register(name, MakeRefused);
  for (const char* const name : {"CollectiveAllToAllV2", "CollectiveAllToAllV3", "CollectiveAssignGroupV2",
                                 "CollectiveBcastRecv", "CollectiveBcastRecvV2", "CollectiveBcastSend",
                                 "CollectiveBcastSendV2", "CollectiveGather", "CollectiveGatherV2",
                                 "CollectiveInitializeCommunicator", "CollectivePermute", "CollectiveReduce",
                                 "CollectiveReduceScatterV2", "CollectiveReduceV2", "CollectiveReduceV3"})
    Register(name, MakeRefused);
}

// TensorFlow takes eager constants of int32 for memory of the host, where XLA's kernel has its result on the device.
void KeepOnHost(void*, TF_OpKernelContext* context) {
  TF_Status* const status = TF_NewStatus();
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, 0, &tensor, status);
  if (TF_GetCode(status) == TF_OK) TF_SetOutput(context, 0, tensor, status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
  if (tensor != nullptr) TF_DeleteTensor(tensor);
  TF_DeleteStatus(status);
}

}  // namespace

extern "C" {
// Fills the bytes in use, their peak and the limit of a device, each -1 where it is unknown; returns whether it can.
EXPORTED bool PjrtAdapter_MemoryStats(int32_t number, int64_t stats[3]) {
  size_t count = 0;
  PJRT_Device* const* const devices = Devices(&count);
  if (devices == nullptr || number < 0 || static_cast<size_t>(number) >= count) return false;
  PJRT_Device_MemoryStats_Args args{};
  args.struct_size = PJRT_Device_MemoryStats_Args_STRUCT_SIZE;
  args.device = devices[number];
  if (PJRT_Error* const error = plugin_api->PJRT_Device_MemoryStats(&args)) {
    PJRT_Error_Destroy_Args destroyed{};
    destroyed.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE;
    destroyed.error = error;
    plugin_api->PJRT_Error_Destroy(&destroyed);
    return false;
  }
  stats[0] = args.bytes_in_use;
  stats[1] = args.peak_bytes_in_use_is_set ? args.peak_bytes_in_use : -1;
  stats[2] = args.bytes_limit_is_set ? args.bytes_limit : -1;
  return true;
}

// Returns why TensorFlow has no device; an empty text if it has.
EXPORTED const char* PjrtAdapter_Problem() { return problem.c_str(); }

EXPORTED const TFNPD_Api* TFNPD_InitPlugin(TFNPD_PluginParams* params, TF_Status* status) {
  // Read when TensorFlow first uses a device, which is later. Without it compiled functions find no such device.
  const char* const flags = std::getenv("TF_XLA_FLAGS");
  const std::string own = "--tf_xla_use_device_api=true", others = flags == nullptr ? "" : flags;
  if (others.find("--tf_xla_use_device_api") == std::string::npos)
    setenv("TF_XLA_FLAGS", (others.empty() ? own : others + " " + own).c_str(), 1);
  const Configuration& found = configuration();
  Have(LoadPlugin());
  params->struct_size = TFNPD_PLUGIN_PARAMS_STRUCT_SIZE;
  params->device_type = found.device_type.c_str();
  params->compilation_device_name = found.platform.c_str();
  params->priority = 300;
  params->is_pluggable_device = true;
  params->use_pjrt_on_demand_compile = true;
  static TFNPD_Api api{};
  api.struct_size = TFNPD_Api_STRUCT_SIZE;
  api.TFNPD_GetDeviceCount = DeviceCount;
  api.TFNPD_InitPluginInternalDeviceStates = MakeClient;
  api.TFNPD_XlaShapeToDeviceShapeRepresentation = SameShape;
  TF_SetStatus(status, TF_OK, "");
  return &api;
}

EXPORTED const PJRT_Api* GetPjrtApi() {
  static PJRT_Api* api = nullptr;
  if (api != nullptr) return api;
  if (!LoadPlugin().empty()) {  // TensorFlow has no devices of it, and calls nothing else
    static PJRT_Api without{};
    without.struct_size = PJRT_Api_STRUCT_SIZE;
    without.pjrt_api_version = {PJRT_Api_Version_STRUCT_SIZE, nullptr, PJRT_API_MAJOR, PJRT_API_MINOR};
    without.PJRT_Plugin_Initialize = Nothing;
    return &without;
  }
  api = static_cast<PJRT_Api*>(std::calloc(1, std::max(plugin_api->struct_size, sizeof(PJRT_Api))));
  std::memcpy(api, plugin_api, plugin_api->struct_size);
  api->PJRT_Client_Create = CreateClient;
  return api;
}

EXPORTED void TF_InitKernel() {
  RegisterOnHost();
  TF_Status* const status = TF_NewStatus();
  TF_KernelBuilder* const builder =
      TF_NewKernelBuilder("_EagerConst", configuration().device_type.c_str(), nullptr, KeepOnHost, nullptr);
  TF_KernelBuilder_TypeConstraint(builder, "T", TF_INT32, status);
  TF_KernelBuilder_HostMemory(builder, "input");
  TF_KernelBuilder_HostMemory(builder, "output");
  TF_KernelBuilder_Priority(builder, 1);
  TF_RegisterKernelBuilder("PjrtEagerConst", builder, status);
  TF_DeleteStatus(status);
}
}
