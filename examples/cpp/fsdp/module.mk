# SPDX-License-Identifier: Apache-2.0
$(BUILD)/obj/examples/cpp/fsdp/%.o: CPPFLAGS += $(TORCH_INCLUDE)
$(BUILD)/obj/examples/cpp/fsdp/%.o: CXXFLAGS += -g1
$(BUILD)/obj/examples/cpp/fsdp/main.o: | $(TORCH_PRECOMPILED).gch
$(BUILD)/examples/fsdp: $(BUILD)/obj/examples/cpp/fsdp/main.o $(BUILD)/lib/libaf_train.so
	$(LINK) -Wl,-rpath,'$$ORIGIN/../lib' -L$(BUILD)/lib -laf_train -laf_collectives $(TORCH_LIBS)
ALL += $(BUILD)/examples/fsdp
