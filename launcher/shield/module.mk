# SPDX-License-Identifier: Apache-2.0
# libaf_shield.so: preloaded into ranks and their children; depends on libc alone.
$(BUILD)/lib/libaf_shield.so: $(BUILD)/obj/launcher/shield/shield.o
	@mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $^
ALL += $(BUILD)/lib/libaf_shield.so

# The test preloads it into a small program of its own.
$(BUILD)/tests/shield_program: $(BUILD)/obj/tests/unit/shield/program/program.o
	@mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lpthread
$(eval $(call unit_test,shield,,))
$(BUILD)/tests/unit/shield: | $(BUILD)/lib/libaf_shield.so $(BUILD)/tests/shield_program
