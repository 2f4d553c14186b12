# Removes the volume group, the loop device and the file, if there is no LV in them, and then what LVM remembers of the
# group. Names another group that stays.

# Prints the directories in which LVM keeps copies of the metadata of groups, as it is configured.
list_copy_directories() {
  for kind in archive backup; do
    line=$(lvm lvmconfig --typeconfig full "backup/${kind}_dir") || continue
    line=${line#*\"}
    echo "${line%\"*}"
  done
}

# is_of_group FILE: true for GROUP, and for GROUP_00000-123.vg. The name of another group may begin alike.
is_of_group() {
  name=${1##*/}
  [ "$name" != "$GROUP" ] || return 0
  number=${name#"${GROUP}_"}
  case ${number%.vg} in
  "$name" | "$number" | *[!0-9-]*) return 1 ;;
  esac
}

# Removes the copies of our group, which has its tag in each of them, and not those of another one with its name.
remove_copies() {
  list_copy_directories | while read -r copies; do
    for copy in "$copies/$GROUP" "$copies/$GROUP"_*.vg; do
      if [ -f "$copy" ] && is_of_group "$copy" && grep -qF "\"$TAG\"" "$copy"; then
        rm -f "$copy"
      fi
    done
  done
}

device=$(find_loop_device "$file")
if [ -z "$device" ] && [ -e "$file" ]; then
  # Only its LVM knows whether there are volumes in it
  losetup -f "$file"
  device=$(find_loop_device "$file")
fi
volumes=$(list_volumes)
[ -z "$volumes" ] || fail "the volume group $GROUP contains volumes; nothing was removed: $volumes"
for found in $device $(find_loop_device "$file (deleted)"); do
  release "$found"
done
rm -f "$file"
remove_copies
# It stays where others have something in it
rmdir "$directory" 2>/dev/null || :
foreign=$(lvm pvs --noheadings -o pv_name -S "vg_name=$GROUP" | join_words)
[ -z "$foreign" ] || echo "another volume group $GROUP remains on $foreign"
