# SPDX-License-Identifier: Apache-2.0
$(BUILD)/obj/examples/cpp/two_gpus/%.o: CPPFLAGS += $(TORCH_INCLUDE)
$(BUILD)/obj/examples/cpp/two_gpus/%.o: CXXFLAGS += -g1
$(BUILD)/obj/examples/cpp/two_gpus/main.o: | $(TORCH_PRECOMPILED).gch
$(BUILD)/examples/two_gpus: $(BUILD)/obj/examples/cpp/two_gpus/main.o $(BUILD)/lib/libaf_train.so
	$(LINK) -Wl,-rpath,'$$ORIGIN/../lib' -L$(BUILD)/lib -laf_train -laf_collectives $(TORCH_LIBS)
ALL += $(BUILD)/examples/two_gpus
