// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches and what is known of kernels.
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "host/emulator/cuda_internal.hpp"
#include "host/emulator/include/cuda_runtime.h"

namespace gimlet::emu {
namespace {

constexpr size_t kSharedDefaultMax = 48 * 1024;

struct KnownKernel {
    KernelBinder bind;
    size_t shared_bytes_max = kSharedDefaultMax;
    std::string name;
};

struct KernelTable {
    std::mutex mutex;
    std::map<const void*, KnownKernel> kernels;
};

// Never destroyed, like the rest of what static objects may use at exit.
KernelTable& kernel_table() {
    static KernelTable* const table = new KernelTable;
    return *table;
}

// ---- names, from the symbol tables of the files that are mapped (dladdr sees only exported ones)

struct Search {
    uintptr_t address;
    std::string found;
};

std::string symbol_in_file(const char* path, uintptr_t offset) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return "";
    struct stat info {};
    std::string name;
    if (fstat(file, &info) == 0 && info.st_size > static_cast<off_t>(sizeof(ElfW(Ehdr)))) {
        const size_t bytes = static_cast<size_t>(info.st_size);
        void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapped != MAP_FAILED) {
            const char* const base = static_cast<const char*>(mapped);
            const auto* const header = reinterpret_cast<const ElfW(Ehdr)*>(base);
            const auto* const sections =
                reinterpret_cast<const ElfW(Shdr)*>(base + header->e_shoff);
            for (int i = 0; i < header->e_shnum && name.empty(); ++i) {
                if (sections[i].sh_type != SHT_SYMTAB && sections[i].sh_type != SHT_DYNSYM)
                    continue;
                const auto* symbol =
                    reinterpret_cast<const ElfW(Sym)*>(base + sections[i].sh_offset);
                const char* const names = base + sections[sections[i].sh_link].sh_offset;
                for (size_t n = sections[i].sh_size / sizeof(*symbol); n > 0; --n, ++symbol) {
                    if (symbol->st_value == offset && symbol->st_shndx != SHN_UNDEF) {
                        name = names + symbol->st_name;
                        break;
                    }
                }
            }
            munmap(mapped, bytes);
        }
    }
    close(file);
    return name;
}

int look_in_object(dl_phdr_info* object, size_t, void* data) {
    Search& search = *static_cast<Search*>(data);
    for (int i = 0; i < object->dlpi_phnum; ++i) {
        const auto& segment = object->dlpi_phdr[i];
        const uintptr_t start = object->dlpi_addr + segment.p_vaddr;
        if (segment.p_type != PT_LOAD || search.address < start ||
            search.address >= start + segment.p_memsz) {
            continue;
        }
        const char* const path = *object->dlpi_name != '\0' ? object->dlpi_name : "/proc/self/exe";
        search.found = symbol_in_file(path, search.address - object->dlpi_addr);
        return 1;
    }
    return 0;
}

// "void gimlet::kernels::dispatch<float>(Args)" -> "gimlet::kernels::dispatch<float>"
std::string short_name(std::string name) {
    int depth = 0;
    for (size_t i = 0; i < name.size(); ++i) {
        if (name[i] == '<') ++depth;
        if (name[i] == '>') --depth;
        if (name[i] == '(' && depth == 0 && name.compare(i, 21, "(anonymous namespace)") != 0) {
            name.resize(i);
            break;
        }
    }
    if (name.rfind("void ", 0) == 0) name.erase(0, 5);
    return name;
}

KnownKernel& known(const void* function) {
    KernelTable& table = kernel_table();
    KnownKernel& kernel = table.kernels[function];
    if (kernel.name.empty()) kernel.name = function_name(function);
    return kernel;
}

cudaError_t check_shape(const cudaLaunchConfig_t& config, size_t shared_bytes_max) {
    const uint64_t threads = uint64_t{config.blockDim.x} * config.blockDim.y * config.blockDim.z;
    const uint64_t blocks = uint64_t{config.gridDim.x} * config.gridDim.y * config.gridDim.z;
    if (threads == 0 || threads > kThreadsPerBlock || config.blockDim.z > 64) {
        return cudaErrorInvalidConfiguration;
    }
    if (blocks == 0 || blocks > UINT32_MAX || config.gridDim.y > 65535 ||
        config.gridDim.z > 65535) {
        return cudaErrorInvalidConfiguration;
    }
    return config.dynamicSmemBytes > shared_bytes_max ? cudaErrorInvalidValue : cudaSuccess;
}

bool wants_cooperative(const cudaLaunchConfig_t& config) {
    bool cooperative = false;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        if (config.attrs[i].id == cudaLaunchAttributeCooperative) {
            cooperative = config.attrs[i].val.cooperative != 0;
        }
    }
    return cooperative;
}

cudaError_t launch_untyped(const cudaLaunchConfig_t& config, const void* function,
                           void** arguments) {
    std::function<void()> call;
    {
        std::lock_guard lock(kernel_table().mutex);
        const KnownKernel& kernel = known(function);
        if (!kernel.bind) {
            std::fprintf(stderr,
                         "gimlet emulator: %s is launched through a void pointer, and its "
                         "parameters are not known; "
                         "call gimlet_emu_register_kernel(kernel) first\n",
                         kernel.name.c_str());
            return cudaErrorInvalidDeviceFunction;
        }
        call = kernel.bind(arguments);
    }
    return launch_bound(config, function, std::move(call));
}

}  // namespace

std::string function_name(const void* function) {
    Search search{reinterpret_cast<uintptr_t>(function), ""};
    dl_iterate_phdr(look_in_object, &search);
    if (search.found.empty()) {
        char text[32];
        std::snprintf(text, sizeof(text), "kernel at %p", function);
        return text;
    }
    int status = 0;
    char* const readable = abi::__cxa_demangle(search.found.c_str(), nullptr, nullptr, &status);
    if (status != 0) return search.found;
    std::string name = short_name(readable);
    std::free(readable);
    return name;
}

void register_kernel(const void* function, KernelBinder (*make)(const void*)) {
    UnseenScope unseen;
    std::lock_guard lock(kernel_table().mutex);
    KnownKernel& kernel = known(function);
    if (!kernel.bind) kernel.bind = make(function);
}

cudaError_t launch_bound(const cudaLaunchConfig_t& config, const void* function,
                         std::function<void()> call) {
    return api_call([&](EngineCore& core, HostContext& host) {
        auto launch = std::make_shared<KernelLaunch>();
        {
            std::lock_guard lock(kernel_table().mutex);
            const KnownKernel& kernel = known(function);
            const cudaError_t error = check_shape(config, kernel.shared_bytes_max);
            if (error != cudaSuccess) return error;
            launch->name = kernel.name;
        }
        launch->function = function;
        launch->grid = config.gridDim;
        launch->block = config.blockDim;
        launch->shared_bytes = config.dynamicSmemBytes;
        launch->cooperative = wants_cooperative(config);
        launch->call = std::move(call);
        const unsigned resident = core.resident_blocks(*launch);
        if (resident == 0) return cudaErrorLaunchOutOfResources;
        if (launch->cooperative && launch->grid.x * launch->grid.y * launch->grid.z > resident) {
            return cudaErrorCooperativeLaunchTooLarge;
        }
        Work work;
        work.kind = Work::Kind::kernel;
        work.launch = std::move(launch);
        work.name = work.launch->name.c_str();
        return issue(core, host, config.stream, std::move(work));
    });
}

}  // namespace gimlet::emu

using namespace gimlet::emu;

extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
    if (config == nullptr || function == nullptr) return cudaErrorInvalidValue;
    return launch_untyped(*config, function, arguments);
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
    const cudaLaunchConfig_t config{grid, block, shared_bytes, stream, nullptr, 0};
    return cudaLaunchKernelExC(&config, function, arguments);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                        void** arguments, std::size_t shared_bytes,
                                        cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    const cudaLaunchConfig_t config{grid, block, shared_bytes, stream, &attribute, 1};
    return cudaLaunchKernelExC(&config, function, arguments);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    return api_call([&](EngineCore&, HostContext&) {
        if (function == nullptr) return cudaErrorInvalidDeviceFunction;
        if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
        if (value < 0 || static_cast<size_t>(value) > kSharedPerBlock) return cudaErrorInvalidValue;
        std::lock_guard lock(kernel_table().mutex);
        known(function).shared_bytes_max = static_cast<size_t>(value);
        return cudaSuccess;
    });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
    return api_call([&](EngineCore&, HostContext&) {
        if (attributes == nullptr) return cudaErrorInvalidValue;
        if (function == nullptr) return cudaErrorInvalidDeviceFunction;
        *attributes = cudaFuncAttributes{};
        attributes->maxThreadsPerBlock = static_cast<int>(kThreadsPerBlock);
        attributes->numRegs = 32;
        attributes->ptxVersion = attributes->binaryVersion = 90;
        std::lock_guard lock(kernel_table().mutex);
        attributes->maxDynamicSharedSizeBytes = static_cast<int>(known(function).shared_bytes_max);
        return cudaSuccess;
    });
}

cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int block_threads,
                                                          std::size_t shared_bytes) {
    return api_call([&](EngineCore&, HostContext&) {
        if (blocks == nullptr || block_threads <= 0) return cudaErrorInvalidValue;
        if (function == nullptr) return cudaErrorInvalidDeviceFunction;
        *blocks =
            static_cast<int>(blocks_per_sm(static_cast<unsigned>(block_threads), shared_bytes));
        return cudaSuccess;
    });
}

}  // extern "C"
