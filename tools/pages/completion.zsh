
_tessera() {
  local command=${words[2]} name values
  if ((CURRENT == 2)); then
    compadd -- ${=_tessera_commands} --help --version
    return
  fi
  command=${command//[^a-z]/}
  name=_tessera_values_${command}_${${${words[CURRENT - 1]}#--}//-/_}
  values=${(P)name-}
  case $values in
    '') ;;
    :files) _files; return ;;
    :any) return ;;
    *) compadd -- ${=values}; return ;;
  esac
  name=_tessera_options_$command
  if [[ ${words[CURRENT]} == -* ]]; then
    compadd -- ${=${(P)name-}} --help
  else
    name=_tessera_words_$command
    compadd -- ${=${(P)name-}}
    _files
  fi
}
compdef _tessera tessera
