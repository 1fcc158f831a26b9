# SPDX-License-Identifier: Apache-2.0
GPT_OBJECTS := $(patsubst %.cc,$(BUILD)/obj/%.o,$(wildcard examples/cpp/gpt/*.cc))
$(BUILD)/obj/examples/cpp/gpt/%.o: CPPFLAGS += $(TORCH_INCLUDE)
$(BUILD)/obj/examples/cpp/gpt/%.o: CXXFLAGS += -g1
$(GPT_OBJECTS): | $(TORCH_PRECOMPILED).gch
$(BUILD)/examples/gpt: $(GPT_OBJECTS) $(BUILD)/obj/examples/cpp/digits/world.o $(BUILD)/lib/libaf_train.so
	$(LINK) -Wl,-rpath,'$$ORIGIN/../lib' -L$(BUILD)/lib -laf_train -laf_collectives $(TORCH_LIBS)
ALL += $(BUILD)/examples/gpt
