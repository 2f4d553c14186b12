# Removes the volume group, the loop device and the file, if there is no LV in them. Says so where nothing is left.
device=$(find_loop_device "$file")
if [ -z "$device" ] && [ -e "$file" ]; then
  # Only its LVM knows whether there are volumes in it
  losetup -f "$file"
  device=$(find_loop_device "$file")
fi
volumes=$(list_volumes)
[ -z "$volumes" ] || fail "there are volumes in the volume group $GROUP, and nothing was removed: $volumes"
for found in $device $(find_loop_device "$file (deleted)"); do
  release "$found"
done
rm -f "$file"
# It stays where others have something in it
rmdir "$directory" 2>/dev/null || :
foreign=$(lvm pvs --noheadings -o pv_name -S "vg_name=$GROUP" | join_words)
[ -z "$foreign" ] || echo "another volume group $GROUP stays on $foreign"
