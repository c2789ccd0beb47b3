# frozen_string_literal: true

require_relative "server"

# sig/tidegate.rbs says what the code has: every public method with its keywords, and nothing else.
class SigTest < Minitest::Test
  FILE = File.expand_path("../sig/tidegate.rbs", __dir__)
  # Not for programs: what the client is made of.
  INTERNAL = [Tidegate::Connections].freeze

  def test_every_public_method_has_a_signature_and_every_signature_a_method
    declared = signatures
    existing = modules(Tidegate).to_h { |each| [each.name, methods_of(each)] }
    assert_equal existing.keys.sort, declared.keys.sort
    existing.each { |name, methods| assert_equal methods.keys.sort, declared[name].keys.sort, name }
  end

  def test_every_keyword_is_told_and_every_argument_counted
    declared = signatures
    modules(Tidegate).each do |each|
      methods_of(each).each do |name, method|
        next unless method

        keywords = method.parameters.select { |kind, _| %i[key keyreq].include?(kind) }.map(&:last)
        told = declared.fetch(each.name).fetch(name)
        assert_equal keywords.sort, told.scan(/\??(\w+): /).flatten.map(&:to_sym).sort, "#{each.name} #{name}: #{told}"
        assert_equal method.parameters.count { |kind, _| kind == :req }, required(told), "#{each.name} #{name}: #{told}"
      end
    end
  end

  private

  # The names and the parameters that the file tells, by class.
  def signatures
    place, found = [], {}
    File.readlines(FILE, chomp: true).each do |line|
      case line.strip
      when /\A(?:class|module) (\w+)/ then place.push(Regexp.last_match(1))
      when "end" then place.pop
      when /\Adef (self\.)?(\S+): (.*)\z/
        at(found, place)["#{Regexp.last_match(1)}#{Regexp.last_match(2)}"] = parameters(Regexp.last_match(3))
      when /\Aattr_(reader|accessor) (\w+): / then attribute(at(found, place), Regexp.last_match(2), Regexp.last_match(1))
      end
      at(found, place) unless place.empty?
    end
    assert_empty place, "every class ends"
    found.reject { |name, methods| name == "Tidegate" && methods.empty? }
  end

  def attribute(methods, name, kind)
    methods[name] = "()"
    methods["#{name}="] = "(untyped value)" if kind == "accessor"
  end

  def at(found, place)
    found[place.join("::")] ||= {}
  end

  # What is in the first pair of parentheses.
  def parameters(type)
    depth = 0
    type.each_char.take_while { |letter| (depth += { "(" => 1, ")" => -1 }.fetch(letter, 0)).positive? }.join[1..]
  end

  def required(told)
    told = told.gsub(/\[[^\]]*\]/, "").gsub(/\(.*\)/, "")
    told.split(", ").count { |each| !each.empty? && each != "()" && !each.match?(/\A[?*]|\w+: /) }
  end

  def modules(within)
    found = within.constants.map { |name| within.const_get(name) }.grep(Module) - INTERNAL
    found.flat_map { |each| [each, *(modules(each) unless each < Struct)] }
  end

  def methods_of(each)
    own = each.public_instance_methods(false).to_h { |name| [name.to_s, each.instance_method(name)] }
    own.update("initialize" => each.instance_method(:initialize)) if each.private_instance_methods(false).include?(:initialize)
    singleton = each < Struct ? [] : each.singleton_methods(false)
    own.update(singleton.to_h { |name| ["self.#{name}", each.method(name)] })
    each < Struct ? own.transform_values { nil } : own
  end
end
