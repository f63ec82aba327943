//! The options of one mechanism: as a type, and as text.

use crate::Error;
use std::{fmt, time::Duration};

/// The typed options of one mechanism: [`SelectOptions`], [`PollOptions`], [`DevPollOptions`],
/// `UringPollOptions`, [`RtSignalsOptions`] and [`HybridOptions`]. The other mechanisms have none.
///
/// [`SelectOptions`]: crate::mechanism::select::SelectOptions
/// [`PollOptions`]: crate::mechanism::poll::PollOptions
/// [`DevPollOptions`]: crate::mechanism::devpoll::DevPollOptions
/// [`RtSignalsOptions`]: crate::mechanism::signals::RtSignalsOptions
/// [`HybridOptions`]: crate::mechanism::signals::HybridOptions
pub trait OwnOptions: Clone + fmt::Debug + Default + PartialEq {
    /// The name of the mechanism whose options they are.
    const MECHANISM: &'static str;

    /// Sets the option `key` to the value that `text` stands for.
    ///
    /// # Errors
    /// [`Error::Spec`] when the mechanism has no such option, or the option no such value.
    fn set(&mut self, key: &str, text: &str) -> Result<(), Error>;

    /// The options that differ from their defaults: key and value.
    fn pairs(&self) -> Vec<(&'static str, String)>;
}

/// A type of option values.
pub(crate) trait Value: Sized {
    fn read(text: &str) -> Option<Self>;
    fn write(&self) -> String;
    /// The texts that [`Value::read`] accepts, for the error message.
    fn wanted() -> String {
        "a number".into()
    }
}

impl Value for bool {
    fn read(text: &str) -> Option<Self> {
        match text {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        }
    }

    fn write(&self) -> String {
        if *self { "on" } else { "off" }.into()
    }

    fn wanted() -> String {
        "on or off".into()
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Value for $number {
            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn write(&self) -> String {
                self.to_string()
            }
        })*
    };
}

numbers!(u32, u64);

/// A signal's number; `None`, the default, has no text.
impl Value for Option<i32> {
    fn read(text: &str) -> Option<Self> {
        let number: u32 = text.parse().ok()?;
        i32::try_from(number).ok().map(Some)
    }

    fn write(&self) -> String {
        self.map(|number| number.to_string()).unwrap_or_default()
    }

    fn wanted() -> String {
        "the number of a real-time signal".into()
    }
}

/// In milliseconds.
impl Value for Duration {
    fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::from_millis)
    }

    fn write(&self) -> String {
        self.as_millis().to_string()
    }
}

/// An option with named values; the first is the default.
macro_rules! choice {
    (
        $(#[$meta:meta])*
        $name:ident {
            $(#[$first_doc:meta])*
            $first:ident = $first_text:literal,
            $($(#[$doc:meta])* $variant:ident = $text:literal),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name {
            $(#[$first_doc])*
            #[default]
            $first,
            $($(#[$doc])* $variant),*
        }

        impl $name {
            /// The names on the command line, the default first.
            pub const NAMES: &'static [&'static str] = &[$first_text, $($text),*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    Self::$first => $first_text,
                    $(Self::$variant => $text),*
                }
            }
        }

        impl $crate::options::own::Value for $name {
            fn read(text: &str) -> Option<Self> {
                match text {
                    $first_text => Some(Self::$first),
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }

            fn write(&self) -> String {
                self.name().into()
            }

            fn wanted() -> String {
                Self::NAMES.join(" or ")
            }
        }
    };
}
pub(crate) use choice;

/// Defines the options of a mechanism: field, setter, key in text, type and default of each;
/// `wants` describes the allowed values if the type does not.
macro_rules! own_options {
    (
        $(#[$meta:meta])*
        $name:ident of $mechanism:literal {
            $(
                $(#[$doc:meta])*
                $field:ident by $with:ident as $key:literal: $type:ty = $default:expr
                    $(, wants $wanted:expr)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: $type),*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }

        impl $name {
            $(
                #[doc = concat!("These, with [`", stringify!($field), "`](Self::", stringify!($field), ") as given.")]
                #[must_use]
                #[allow(clippy::needless_update, reason = "some have one option")]
                pub fn $with(self, $field: $type) -> Self {
                    Self { $field, ..self }
                }
            )*
        }

        impl $crate::options::OwnOptions for $name {
            const MECHANISM: &'static str = $mechanism;

            fn set(&mut self, key: &str, text: &str) -> Result<(), $crate::Error> {
                use $crate::options::own::{Value, refused};
                match key {
                    $($key => {
                        let wanted = || $crate::options::own::wanted!($type $(, $wanted)?);
                        self.$field = <$type as Value>::read(text)
                            .ok_or_else(|| refused($mechanism, key, text, &wanted()))?;
                    })*
                    _ => $crate::registry::check_option($mechanism, key, text)?,
                }
                Ok(())
            }

            fn pairs(&self) -> Vec<(&'static str, String)> {
                use $crate::options::own::Value;
                let default = Self::default();
                let mut pairs = Vec::new();
                $(if self.$field != default.$field {
                    pairs.push(($key, self.$field.write()));
                })*
                pairs
            }
        }
    };
}
pub(crate) use own_options;

/// The values that an option allows.
macro_rules! wanted {
    ($type:ty) => {
        <$type as $crate::options::own::Value>::wanted()
    };
    ($type:ty, $wanted:expr) => {
        String::from($wanted)
    };
}
pub(crate) use wanted;

/// The error for a value that an option does not allow.
pub(crate) fn refused(mechanism: &str, key: &str, text: &str, wanted: &str) -> Error {
    Error::Spec(format!("mechanism {mechanism}: {key}={text}: expected {wanted}"))
}
