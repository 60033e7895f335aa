// A modal dialog of the browser itself. The dialogs of the component library add a style element, which the security policy refuses.

import { useEffect, useLayoutEffect, useRef, type ReactNode } from "react";

interface Props {
  id?: string;
  label: string;
  isOpen: boolean;
  /** Called when the user wants to leave; without it, the dialog stays. */
  close?: () => void;
  className?: string;
  children: ReactNode;
}

export function Dialog({ id, label, isOpen, close, className, children }: Props) {
  const node = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = node.current;
    if (dialog === null) return;
    if (isOpen && !dialog.open) dialog.showModal();
    else if (!isOpen && dialog.open) dialog.close();
  }, [isOpen]);
  // A dialog that is removed while it is open would not give the focus back.
  useLayoutEffect(() => {
    const dialog = node.current;
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      id={id}
      ref={node}
      className={className}
      aria-label={label}
      onCancel={(event) => {
        event.preventDefault();
        close?.();
      }}
      onClick={(event) => {
        if (event.target === node.current) close?.();
      }}
    >
      {isOpen && <div className="dialog-body">{children}</div>}
    </dialog>
  );
}
