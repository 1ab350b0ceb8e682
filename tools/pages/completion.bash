
_tessera() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} values
  COMPREPLY=()
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "$_tessera_commands --help --version" -- "$current"))
    return
  fi
  command=${command//[^a-z]/}
  [ "$previous" != = ] || previous=${COMP_WORDS[COMP_CWORD - 2]}
  [ "$current" != = ] || { previous=${COMP_WORDS[COMP_CWORD - 1]} && current=; }
  values=${previous#--}
  values=_tessera_values_${command}_${values//-/_}
  values=${values//[^a-z_]/}
  case ${!values-} in
    '') ;;
    :files) COMPREPLY=($(compgen -f -- "$current")); return ;;
    :any) return ;;
    *) COMPREPLY=($(compgen -W "${!values}" -- "$current")); return ;;
  esac
  local words=_tessera_words_$command options=_tessera_options_$command
  case $current in
    -*) COMPREPLY=($(compgen -W "${!options-} --help" -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "${!words-}" -- "$current") $(compgen -f -- "$current")) ;;
  esac
}
complete -o filenames -F _tessera tessera
